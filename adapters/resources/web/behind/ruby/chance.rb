# frozen_string_literal: true

require 'securerandom'

module Statefork
  # What a request draws where it was given chance, so that doing it again draws the same; all else is the machine's.
  module BoundChance
    def bytes(size)
      Statefork.here.last&.chance&.bytes(size) || super
    end

    def gen_random(size)
      Statefork.here.last&.chance&.bytes(size) || super
    end
  end

  SecureRandom.singleton_class.prepend(BoundChance)
end
