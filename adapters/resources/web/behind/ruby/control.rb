# frozen_string_literal: true

module Statefork
  # This process's end of the channel. When it closes, the server is gone, and this process ends.
  class Control
    def initialize(reader, say)
      @reader = reader
      @say = say
    end

    def run
      @reader.each_line do |line|
        asked = JSON.parse(line)
        # what waits for a connection must not keep others waiting
        Thread.new { answer(asked) }
      end
      exit!(0)
    end

    private

    def answer(asked)
      id = asked.delete('id')
      bound = Statefork.find(asked['nonce'])
      value = public_send("do_#{asked.delete('op')}", bound, **asked.transform_keys(&:to_sym))
      @say.call({ id: id, ok: value })
    rescue StandardError => e
      warn e.full_message
      @say.call({ id: id, error: "#{e.class}: #{e.message}" })
    end

    public

    def do_bind(_bound, nonce:, env:, epoch:, stores:)
      Statefork.bind(nonce, env, epoch, stores)
      true
    end

    def do_connections(bound, **)
      bound&.kept(:pool)&.connections&.size.to_i
    end

    def do_busy(bound, **)
      bound ? Pools.busy(bound) : ''
    end

    def do_close(bound, **)
      bound&.kept(:pool)&.disconnect!
      true
    end

    def do_cut(bound, **)
      bound&.cut!
      true
    end

    def do_drop(bound, nonce:)
      return true unless bound

      bound.cut!
      Statefork.drop(nonce)
      Pools.close(bound)
      bound.forget!
      true
    end

    def do_stats(_bound)
      bounds = Statefork.bounds.map do |bound|
        { env: bound.env, epoch: bound.epoch, connections: bound.kept(:pool)&.connections&.size.to_i }
      end
      { bindings: bounds, jobs: Statefork.jobs, threads: Thread.list.size }
    end

    # Strings of this process that hold a marker, which comes in two parts so that no string of ours holds it.
    def do_holders(_bound, first:, second:)
      marker = Regexp.new("#{Regexp.escape(first)}(?=#{Regexp.escape(second)})", Regexp::FIXEDENCODING | Regexp::NOENCODING)
      4.times { GC.start }
      texts = ObjectSpace.each_object(String).to_a # before the search makes copies of its own
      texts.select! { |text| marker.match?(text.b) }
      return [] if texts.empty?

      texts.zip(owners(texts)).map { |text, owned| "#{text.bytesize} bytes #{text.b[0, 60].inspect} of #{owned}" }
    end

    private

    # What refers to each of the texts, by class; of what only a thread's stack refers to, nothing does.
    def owners(texts)
      found = texts.to_h { |text| [text.object_id, []] }
      ObjectSpace.each_object do |object|
        next if object.equal?(texts)

        (ObjectSpace.reachable_objects_from(object) || []).each do |reached|
          found[reached.object_id]&.push(object.class.to_s) if reached.is_a?(String)
        end
      end
      texts.map { |text| found[text.object_id].uniq.join(', ') }
    end
  end
end
