# frozen_string_literal: true

module Statefork
  # What a request is carried out in: a fiber of its own, so that nothing which the application leaves in the thread's
  # locals, or on its stack, is met by the next request of another environment.
  class Course
    def initialize(bound, work)
      @bound = bound
      @work = work
    end

    def go(&block)
      @bound.enter(@work) { fiber.resume(block) }
    end

    # The end of it, in whatever way.
    def leave
      @fiber.resume(nil) if @fiber&.alive?
      @fiber = nil
      Statefork.ended(@bound)
    ensure
      @work.done
    end

    private

    def fiber
      return @fiber if @fiber&.alive? # one that has raised is not

      @fiber = Fiber.new do |block|
        block = Fiber.yield(block.call) while block
      end
    end
  end

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
      course = Course.new(bound, work)
      begin
        answer = course.go { env['PATH_INFO'] == @ready_path ? ready(bound) : @app.call(env) }
      ensure
        course.leave unless answer
      end
      finish(answer, course, bound, work)
    rescue BindingEnded => e
      [409, { 'Content-Type' => 'text/plain' }, [e.message]]
    rescue StandardError
      raise unless work&.lost && !bound.cut?

      lost(work)
    end

    private

    def ready(bound)
      Readiness.each { |check| check.call(bound) }
      [204, {}, []]
    rescue StandardError => e
      [503, { 'Content-Type' => 'text/plain' }, ["#{e.class}: #{e.message}"]]
    end

    def finish(answer, course, bound, work)
      status, headers, body = answer
      body = Body.new(body, course)
      return [status, headers, body] unless work.lost && !bound.cut?

      body.close
      lost(work)
    end

    def lost(work)
      [502, { LOST => work.lost.gsub(/[^ -~]/, ' ')[0, 500] }, []]
    end
  end

  # A response's body within its binding; whoever closes it ends the request.
  class Body
    def initialize(body, course)
      @body = body
      @course = course
    end

    def each(&block)
      @course.go { @body.each(&block) }
    end

    def close
      course, @course = @course, nil
      return unless course

      begin
        course.go { @body.close if @body.respond_to?(:close) }
      rescue BindingEnded
        @body.close if @body.respond_to?(:close)
      ensure
        course.leave
        @body = nil
      end
    end
  end

  # What a probe does in the binding: each block is given it, and raises when a store can't be reached.
  Readiness = []
end
