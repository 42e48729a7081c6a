# frozen_string_literal: true

# Redmine for one environment alone: a puma of its own, with the settings that site/redmine.rb gives to the shared one.
# Started by private.py. The database is where libpq's own variables (PGHOST, PGDATABASE, ...) say.

require 'puma' # before the application's bundle hides what it does not name
require 'puma/server'
require 'nio'

require '/usr/share/redmine/config/environment'
Rails.application.eager_load!
Rails.logger.level = :warn
THREADS = Integer(ENV.fetch('TRACKER_THREADS'))
ActiveRecord::Base.establish_connection(
  adapter: 'postgresql', pool: THREADS + 4, checkout_timeout: 10, idle_timeout: 1, reaping_frequency: 1
)

media = ENV.fetch('TRACKER_MEDIA')
# Debian keeps the cache in a directory that all processes of the machine share.
Rails.cache = ActiveSupport::Cache::MemoryStore.new(size: 8 << 20)
ActionController::Base.cache_store = Rails.cache
Attachment.storage_path = File.join(media, 'files')
Attachment.thumbnails_storage_path = File.join(media, 'thumbnails')

# A table that is being imported waits in a file between two requests.
module ImportsInMedia
  def filepath
    return super unless filename.present? && filename =~ /\A[0-9a-f]+\z/

    imports = File.join(ENV.fetch('TRACKER_MEDIA'), 'imports')
    FileUtils.mkdir_p(imports)
    File.join(imports, filename)
  end
end
Import.prepend(ImportsInMedia)

# Letters are files among the uploads.
class Outbox
  def initialize(*); end

  def deliver!(mail)
    outbox = File.join(ENV.fetch('TRACKER_MEDIA'), 'outbox')
    FileUtils.mkdir_p(outbox)
    File.binwrite(File.join(outbox, "#{mail.message_id.gsub(/[^\w.@-]/, '')}.eml"), mail.encoded)
  end
end
ActionMailer::Base.add_delivery_method(:outbox, Outbox)
ActionMailer::Base.delivery_method = :outbox
ActionMailer::Base.perform_deliveries = true

# Connections live as long as requests, as PHP's do: who looks whether a database was written can't tell for a session
# that is there and only read.
class LettingGo
  def initialize(app)
    @app = app
  end

  def call(env)
    status, headers, body = @app.call(env)
    [status, headers, Rack::BodyProxy.new(body) { let_go }]
  rescue StandardError
    let_go
    raise
  end

  def let_go
    ActiveRecord::Base.connection_pool.release_connection
    ActiveRecord::Base.connection_pool.flush(0)
  end
end

static = %w[/stylesheets /javascripts /images /themes /plugin_assets /help /favicon.ico]
application = Rack::Static.new(Rails.application, urls: static, root: '/usr/share/redmine/public')
ActiveRecord::Base.connection_pool.disconnect!
server = Puma::Server.new(LettingGo.new(application), Puma::Events.stdio, min_threads: 2, max_threads: THREADS)
server.add_tcp_listener('127.0.0.1', Integer(ENV.fetch('PORT')))
trap('TERM') { server.stop }
server.run.join
