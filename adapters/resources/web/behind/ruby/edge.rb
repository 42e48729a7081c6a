# frozen_string_literal: true

module Statefork
  # What a request is carried out in: a fiber of its own, so that nothing which the application leaves in the thread's
  # locals is met by the next request of another environment. The application's objects never come out of it: what the
  # thread has had on its stack, it keeps alive until it happens to serve somebody else.
  class Course
    def initialize(app, bound, work)
      @app = app
      @bound = bound
      @work = work
    end

    # Status and headers.
    def call(env)
      go do
        status, headers, @body = @app.call(env.dup)
        [status, headers]
      end
    end

    def each(&block)
      go { @body.each(&block) && nil }
    end

    # The end of it, in whatever way.
    def close
      close_body
      @fiber.resume(nil) if @fiber&.alive?
    ensure
      @fiber = @body = nil
      begin
        Statefork.ended(@bound)
      ensure
        @work.done
      end
    end

    private

    def go(&block)
      @bound.enter(@work) { fiber.resume(block) }
    end

    def close_body
      go { @body.close && nil if @body.respond_to?(:close) }
    rescue BindingEnded
      @body.close if @body.respond_to?(:close)
    end

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
      course = Course.new(env['PATH_INFO'] == @ready_path ? Ready : @app, bound, work)
      begin
        status, headers = course.call(env)
      ensure
        course.close if status.nil? || lost?(bound, work)
      end
      lost?(bound, work) ? lost(work) : [status, headers, Body.new(course)]
    rescue BindingEnded => e
      [409, { 'Content-Type' => 'text/plain' }, [e.message]]
    rescue StandardError
      raise unless work && lost?(bound, work)

      lost(work)
    end

    private

    def lost?(bound, work)
      work.lost && !bound.cut?
    end

    def lost(work)
      [502, { LOST => work.lost.gsub(/[^ -~]/, ' ')[0, 500] }, []]
    end
  end

  # A response's body within its binding; whoever closes it ends the request.
  class Body
    def initialize(course)
      @course = course
    end

    def each(&block)
      @course.each(&block)
    end

    def close
      course, @course = @course, nil
      course&.close
    end
  end

  # What a probe does in the binding: each block is given it, and raises when a store can't be reached.
  Readiness = []

  # The application that answers a probe.
  module Ready
    def self.call(_env)
      Readiness.each { |check| check.call(Statefork.current!) }
      [204, {}, []]
    rescue StandardError => e
      [503, { 'Content-Type' => 'text/plain' }, ["#{e.class}: #{e.message}"]]
    end
  end
end
