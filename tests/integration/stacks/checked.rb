# frozen_string_literal: true

# The tracker with what the tests ask of it beside its pages: what code without an environment meets, work that outlasts
# its answer, and guards that are taken away and put back.

site = ENV.fetch('STATEFORK_SITE')
inner = TOPLEVEL_BINDING.eval(File.read("#{site}/redmine.rb"), "#{site}/redmine.rb")

# Takes guards away, by name, and puts them back.
module Guards
  SHARED = ActiveSupport::Cache::MemoryStore.new
  class << self
    def without(name)
      @undo = send("without_#{name}")
    end

    def back
      @undo&.call
      @undo = nil
    end

    private

    def removed(mod, *names)
      kept = names.map { |name| [name, mod.instance_method(name), mod.private_method_defined?(name)] }
      names.each { |name| mod.send(:remove_method, name) }
      lambda do
        kept.each do |name, method, hidden|
          mod.send(:define_method, name, method)
          mod.send(:private, name) if hidden
        end
      end
    end

    def without_connections # whoever comes first serves all
      back = removed(Statefork::BoundConnections, :retrieve_connection_pool)
      first = nil
      Statefork::BoundConnections.send(:define_method, :retrieve_connection_pool) do |_owner, **|
        first ||= Statefork::Pools.make(Statefork.current!)
      end
      back
    end

    def without_settings
      kept = Setting.instance_variable_get(:@cached_settings)
      back = removed(Statefork::SlicedSettings, :check_cache, :clear_cache)
      Setting.instance_variable_set(:@cached_settings, {})
      lambda do
        back.call
        Setting.instance_variable_set(:@cached_settings, kept)
      end
    end

    def without_caches
      SHARED.clear
      back = removed(Statefork::SlicedCache, :slice)
      Statefork::SlicedCache.send(:define_method, :slice) { SHARED }
      back
    end

    def without_uploads
      back = removed(Statefork::SlicedAttachments, :storage_path)
      Statefork::SlicedAttachments.send(:define_method, :storage_path) { "#{ENV.fetch('STATEFORK_SITE')}/elsewhere" }
      back
    end

    def without_jobs
      removed(Statefork::CarriedTasks, :post)
    end

    def without_threads
      removed(Statefork::CarriedThreads, :new)
    end

    def without_release
      kept = [Statefork.method(:drop), Statefork::Bound.instance_method(:forget!)]
      Statefork.define_singleton_method(:drop) { |_nonce| nil }
      Statefork::Bound.send(:define_method, :forget!) { nil }
      lambda do
        Statefork.define_singleton_method(:drop, kept.first.unbind)
        Statefork::Bound.send(:define_method, :forget!, kept.last)
        Statefork.bounds.select(&:cut?).each { |bound| bound.forget!; Statefork.drop(bound.nonce) }
      end
    end
  end
end

# The pages of the tests' own.
class Checked
  STORES = {
    database: -> { Issue.count },
    connection: -> { ActiveRecord::Base.connection.select_value('SELECT 1') },
    cache: -> { Rails.cache.read('x') },
    setting: -> { Setting.app_title },
    search: -> { Redmine::Search.cache_store.read('x') },
    uploads: -> { Attachment.storage_path }
  }.freeze

  def initialize(inner)
    @inner = inner
  end

  def call(env)
    return @inner.call(env) unless env['PATH_INFO'].start_with?('/checked/')

    asked = Rack::Utils.parse_query(env['QUERY_STRING'])
    [200, { 'Content-Type' => 'application/json' }, [JSON.generate(send(env['PATH_INFO'][9..], asked))]]
  end

  private

  def without(asked)
    Guards.without(asked['guard'])
    true
  end

  def back(_asked)
    Guards.back
    true
  end

  def unbound(_asked)
    Statefork.outside do
      Thread.new { STORES.transform_values { |reach| meet(&reach) } }.value
    end
  end

  def meet
    yield
    'reached'
  rescue StandardError => e
    e.class.name
  end

  # A thread that outlasts the answer, and writes when it is told to.
  def later(asked)
    Thread.new do
      File.open(asked['pipe'], &:gets)
      Setting['welcome_text'] = asked['text']
    ensure
      ActiveRecord::Base.clear_active_connections!
    end
    true
  end

  # How many connections each has, and may have from now on with all the others.
  def cap(asked)
    Statefork::Pools.connections_max = asked['most'].to_i
    Statefork::Pools.trim
    open = Statefork.bounds.to_h { |bound| [bound.env, bound.kept(:pool)&.connections&.size.to_i] }
    open.reject { |_, count| count.zero? }
  end

  # A statement that does not end by itself.
  def endless(_asked)
    ActiveRecord::Base.connection.execute('SELECT pg_sleep(600)')
    true
  end
end

Checked.new(inner)
