# frozen_string_literal: true

require 'concurrent'

module Statefork
  # A thread that a request starts is that request's.
  module CarriedThreads
    %i[new start fork].each do |name|
      define_method(name) do |*args, &block|
        bound, work = Statefork.here
        next super(*args, &block) unless bound && block

        work.take
        begin
          super(*args) { |*given| Carried.run(bound, work) { block.call(*given) } }
        rescue StandardError
          work.done
          raise
        end
      end
    end
  end

  # A job of a pool is its request's; the pool's threads are nobody's.
  module CarriedTasks
    def post(*args, &task)
      bound, work = Statefork.here
      return super unless bound && task

      work.take
      Statefork.count('queued')
      taken = false
      begin
        taken = Statefork.outside do
          super(*args) { |*given| Carried.run(bound, work) { task.call(*given).tap { Statefork.count('run') } } }
        end
      ensure
        work.done unless taken
      end
    end
  end

  # A task for later is its request's too, and the request is at work until it was done.
  module CarriedLater
    def initialize(delay, opts = {}, &task)
      bound, work = Statefork.here
      return super unless bound && task

      work.take
      super(delay, opts) { |*given| Carried.run(bound, work) { task.call(*given) } }
    end
  end

  # The clock that all tasks for later wait for is nobody's.
  module SharedTimers
    private

    def post_task(task)
      Statefork.outside { super }
    end
  end

  # What the others have in common.
  module Carried
    def self.run(bound, work, &block)
      bound.enter(work, &block)
    rescue BindingEnded => e
      warn "statefork: #{e.message}"
    ensure
      Statefork.ended(bound)
      work.done
    end
  end

  def self.inherit!
    Thread.singleton_class.prepend(CarriedThreads)
    Concurrent::RubyExecutorService.prepend(CarriedTasks)
    Concurrent::ScheduledTask.prepend(CarriedLater)
    Concurrent::TimerSet.prepend(SharedTimers)
  end
end
