# frozen_string_literal: true

# Rails: connections and caches follow the thread's binding. Installed when the application is loaded whole.

module Statefork
  # Which pool a model uses is decided by the binding; without one there is none.
  module BoundConnections
    def retrieve_connection_pool(_owner, **)
      Statefork.current!.keep(:pool) { Pools.make(Statefork.current!) }
    end

    def connection_pool_list(*)
      [Statefork.current&.kept(:pool)].compact
    end
    alias connection_pools connection_pool_list
    alias all_connection_pools connection_pool_list

    def establish_connection(*, **)
      raise NoEnvironment, 'a database of its own, which no contract declares: connections are made by bindings'
    end
  end

  # Sessions outlive a restart of their server as far as nothing was begun on them; what is lost is told.
  module WatchedSessions
    COMES_BACK_S_MAX = 15.0
    ASK_AGAIN_S = 0.05
    COMING_BACK = Regexp.union(
      'Connection refused', 'No such file', 'closed the connection', 'is starting up', 'is shutting down',
      'in recovery mode', 'not yet accepting'
    )

    def reconnect!
      Pools.persist { super }
    end

    def translate_exception_class(error, *)
      work = Statefork.here.last
      gone = error.is_a?(PG::Error) && (@connection.nil? || @connection.finished? || @connection.status != PG::CONNECTION_OK)
      work.lost = "the database was lost: #{error.message}" if gone && work
      super
    end
  end

  # One pool of connections for each binding, all of them together under a limit.
  module Pools
    class << self
      attr_accessor :per_binding_max, :connections_max, :schema

      def make(bound)
        told = bound.store('database')
        settings = {
          adapter: 'postgresql', host: told['host'], port: told['port'], database: told['name'],
          username: told['user'], password: told['password'],
          pool: per_binding_max, checkout_timeout: 10, idle_timeout: 30, reaping_frequency: 15
        }
        config = ActiveRecord::DatabaseConfigurations::HashConfig.new(Rails.env, 'primary', settings.compact)
        # as nobody's: the thread that reaps idle connections is every pool's
        pool = Statefork.outside { ActiveRecord::ConnectionAdapters::PoolConfig.new('ActiveRecord::Base', config).pool }
        pool.schema_cache = schema.dup if schema
        pool
      end

      def persist
        give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + WatchedSessions::COMES_BACK_S_MAX
        begin
          yield
        rescue PG::Error, ActiveRecord::ConnectionNotEstablished => e
          Statefork.current&.check!
          late = Process.clock_gettime(Process::CLOCK_MONOTONIC) > give_up
          unless late || !WatchedSessions::COMING_BACK.match?(e.message)
            sleep WatchedSessions::ASK_AGAIN_S
            retry
          end
          work = Statefork.here.last
          work.lost = "the database can't be reached: #{e.message}" if work
          raise
        end
      end

      # Close idle connections, of whom was served longest ago first, until all together are under the limit.
      def trim(room: 0)
        open = Statefork.bounds.map { |bound| [bound.used_at, bound.kept(:pool)] }.select(&:last)
        surplus = open.sum { |_, pool| pool.connections.size } + room - connections_max
        open.sort_by(&:first).each do |_, pool|
          break unless surplus.positive?

          surplus -= pool.connections.size
          pool.flush(0)
        end
      end

      # Idle connections now; others, which were shut, when their threads let go of them.
      def close(bound)
        pool = bound.kept(:pool) or return

        pool.flush(0)
        Thread.new { pool.disconnect(false) } unless pool.connections.empty?
      end

      def busy(bound)
        (bound.kept(:pool)&.connections || []).select(&:in_use?).map do |connection|
          connection.transaction_open? ? 'a transaction is open' : 'a thread has a connection'
        end.uniq.join('; ')
      end

      # From another thread: end what runs, and let the driver find its socket shut.
      def shut(bound)
        (bound.kept(:pool)&.connections || []).each do |connection|
          raw = connection.instance_variable_get(:@connection)
          raw.cancel
          raw.socket_io.shutdown
        rescue StandardError => e
          warn "statefork: a connection of #{bound.env}@#{bound.epoch} could not be shut: #{e.message}"
        end
      end
    end
  end

  # A new connection waits for a server that is being started again.
  module WaitingClients
    def new_client(*)
      Pools.trim(room: 1)
      Pools.persist { super }
    end
  end

  # A cache with a slice for each binding: any of ActiveSupport's stores, made by the block.
  class SlicedCache
    def initialize(name, &make)
      @name = [:cache, name]
      @make = make
    end

    def slice
      Statefork.current!.keep(@name, &@make)
    end

    def method_missing(name, ...)
      slice.public_send(name, ...)
    end

    def respond_to_missing?(name, all = false)
      ActiveSupport::Cache::MemoryStore.method_defined?(name) || super
    end
  end

  # A Hash with a slice for each binding, in the place of one that a class keeps.
  class SlicedHash
    def initialize(name)
      @name = [:hash, name]
    end

    def slice
      Statefork.current!.keep(@name) { {} }
    end

    %i[[] []= clear key? delete fetch].each do |name|
      define_method(name) { |*args, &block| slice.public_send(name, *args, &block) }
    end
  end

  CACHE_BYTES_MAX = 8 << 20 # of one binding's slice

  def self.memory_store
    ActiveSupport::Cache::MemoryStore.new(size: CACHE_BYTES_MAX)
  end

  def self.rails!(schema: nil)
    Pools.schema = schema
    ActiveRecord::Base.connection_handlers.each_value(&:clear_all_connections!)
    ActiveRecord::ConnectionAdapters::ConnectionHandler.prepend(BoundConnections)
    ActiveRecord::ConnectionAdapters::PostgreSQLAdapter.prepend(WatchedSessions)
    ActiveRecord::ConnectionAdapters::PostgreSQLAdapter.singleton_class.prepend(WaitingClients)
    Rails.cache = SlicedCache.new(:rails) { memory_store }
    ActionController::Base.cache_store = Rails.cache
    on_cut { |bound| Pools.shut(bound) }
    on_end { |bound| bound.kept(:pool)&.release_connection }
    Readiness << lambda do |_bound|
      ActiveRecord::Base.connection.select_value('SELECT 1')
    ensure
      ActiveRecord::Base.clear_active_connections!
    end
  end
end
