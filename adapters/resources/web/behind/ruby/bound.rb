# frozen_string_literal: true

# Which environment the running thread belongs to, and what of it is still at work.
#
# Everything that the application keeps of an environment (connections, caches) hangs on a Bound. Dropping that drops it
# in all threads. Without one nothing opens a store.

require 'base64'
require 'json'
require 'openssl'
require 'monitor'

module Statefork
  # Code that belongs to no environment reached for a store.
  class NoEnvironment < StandardError; end

  # The environment of this code was cut off from its stores.
  class BindingEnded < StandardError; end

  # One request and all that it has caused: jobs, threads. It ends when the last of them does.
  class Work
    attr_reader :number, :chance
    attr_accessor :lost

    def initialize(number, seed = '', &ended)
      @number = number
      @chance = seed.empty? ? nil : Random.new(seed.to_i(16))
      @ended = ended
      @open = 1
      @lock = Mutex.new
    end

    def take
      @lock.synchronize { @open += 1 }
    end

    def done
      @ended.call(@number) if @lock.synchronize { @open -= 1 }.zero?
    end
  end

  # One binding of an environment, by a nonce that no other binding bears.
  class Bound
    attr_reader :nonce, :env, :epoch
    attr_accessor :used_at

    def initialize(nonce, env, epoch, stores)
      @nonce = nonce
      @env = env
      @epoch = epoch
      @stores = stores
      @kept = {}
      @threads = Hash.new(0)
      @lock = Monitor.new
      @cut = false
      @used_at = 0.0
    end

    def cut?
      @cut
    end

    def check!
      raise BindingEnded, "#{env}@#{epoch} was ended: its stores are closed to this code" if @cut
    end

    def store(kind)
      check!
      @stores[kind] or raise NoEnvironment, "the contract declares no store #{kind}"
    end

    # What is kept for the environment under a name, made when it is first asked for.
    def keep(name)
      check!
      @lock.synchronize { @kept.fetch(name) { @kept[name] = yield } }
    end

    def kept(name)
      @lock.synchronize { @kept[name] }
    end

    # Run the block as this environment's. A cut raises BindingEnded in it, and never outside of it.
    def enter(work)
      mine = Thread.current
      before = Statefork.here
      Thread.handle_interrupt(BindingEnded => :never) do
        @lock.synchronize { check!; @threads[mine] += 1 }
        Statefork.place(self, work)
        begin
          Thread.handle_interrupt(BindingEnded => :immediate) { yield }
        ensure
          Statefork.place(*before)
          @lock.synchronize { @threads.delete(mine) if (@threads[mine] -= 1).zero? }
        end
      end
    end

    def cut!
      @lock.synchronize do
        return if @cut

        @cut = true
      end
      Statefork.each_closer { |closer| closer.call(self) }
      @lock.synchronize do
        @threads.each_key { |thread| thread.raise(BindingEnded, "#{env}@#{epoch} was ended") }
      end
    end

    def forget!
      @lock.synchronize { @kept.clear }
    end
  end

  class << self
    attr_reader :jobs

    def begin_serving(key, &tell)
      @key = key
      @tell = tell
      @bounds = {}
      @lock = Mutex.new
      @closers = []
      @enders = []
      @jobs = { 'queued' => 0, 'run' => 0 }
    end

    # Called for a binding that is cut off, to close what it has open.
    def on_cut(&closer)
      @closers << closer
    end

    # Called in the thread that a request, job or thread ends in, for what it has left open.
    def on_end(&ender)
      @enders << ender
    end

    def ended(bound)
      @enders.each { |ender| ender.call(bound) }
    end

    def each_closer(&block)
      @closers.each(&block)
    end

    # Thread variables, not fiber-local ones: an enumerator keeps them.
    def here
      [Thread.current.thread_variable_get(:statefork_bound), Thread.current.thread_variable_get(:statefork_work)]
    end

    def place(bound, work)
      Thread.current.thread_variable_set(:statefork_bound, bound)
      Thread.current.thread_variable_set(:statefork_work, work)
    end

    def current
      Thread.current.thread_variable_get(:statefork_bound)
    end

    def current!
      bound = current
      raise NoEnvironment, 'no environment is bound to this thread' unless bound

      bound.check!
      bound
    end

    # Run the block as nobody's.
    def outside
      before = here
      place(nil, nil)
      yield
    ensure
      place(*before)
    end

    def count(what)
      @lock.synchronize { @jobs[what] += 1 }
    end

    def bind(nonce, env, epoch, stores)
      @lock.synchronize { @bounds[nonce] ||= Bound.new(nonce, env, epoch, stores) }
    end

    def find(nonce)
      @lock.synchronize { @bounds[nonce] }
    end

    def bounds
      @lock.synchronize { @bounds.values }
    end

    def drop(nonce)
      @lock.synchronize { @bounds.delete(nonce) }
    end

    # The binding that a request's header proves, and its work; nil when it proves none.
    def admit(header)
      text, _, mac = header.to_s.partition('.')
      return unless OpenSSL.secure_compare(OpenSSL::HMAC.hexdigest('SHA256', @key, text), mac)

      told = JSON.parse(Base64.urlsafe_decode64(text))
      bound = find(told['nonce'])
      return if bound.nil? || bound.cut?

      bound.used_at = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      [bound, Work.new(told['work'], told['seed']) { |number| @tell.call({ event: 'ended', work: number }) }]
    end
  end
end
