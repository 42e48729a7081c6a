# frozen_string_literal: true

module Statefork
  # The outermost Rack application: one environment for each request, held until the body is closed.
  class Edge
    LOST = 'Statefork-Lost'

    def initialize(app, ready_path)
      @app = app
      @ready_path = ready_path
    end

    def call(env)
      bound, work = Statefork.admit(env.delete('HTTP_STATEFORK_BOUND'))
      return [421, { 'Content-Type' => 'text/plain' }, ["no environment\n"]] unless bound

      env.delete('rack.hijack') # a stream without its binding
      env['rack.hijack?'] = false
      answered = false
      begin
        answer = bound.enter(work) { env['PATH_INFO'] == @ready_path ? ready(bound) : @app.call(env) }
        answered = true
        finish(answer, bound, work)
      ensure
        work.done unless answered
      end
    rescue BindingEnded => e
      [409, { 'Content-Type' => 'text/plain' }, [e.message]]
    end

    private

    def ready(bound)
      Readiness.each { |check| check.call(bound) }
      [204, {}, []]
    rescue StandardError => e
      [503, { 'Content-Type' => 'text/plain' }, ["#{e.class}: #{e.message}"]]
    end

    def finish(answer, bound, work)
      status, headers, body = answer
      body = Body.new(body, bound, work)
      return [status, headers, body] unless work.lost && !bound.cut?

      body.close
      [502, { LOST => work.lost.gsub(/[^ -~]/, ' ')[0, 500] }, []]
    end
  end

  # A response's body within its binding; whoever closes it ends the request.
  class Body
    def initialize(body, bound, work)
      @body = body
      @bound = bound
      @work = work
    end

    def each(&block)
      @bound.enter(@work) { @body.each(&block) }
    end

    def close
      return unless @work

      work, @work = @work, nil
      begin
        @bound.enter(work) { @body.close if @body.respond_to?(:close) }
      rescue BindingEnded
        @body.close if @body.respond_to?(:close)
      ensure
        work.done
      end
    end
  end

  # What a probe does in the binding: each block is given it, and raises when a store can't be reached.
  Readiness = []
end
