# frozen_string_literal: true

# Redmine behind the server. Its packages are untouched; what its classes keep in this process is split by binding.

site = ENV.fetch('STATEFORK_SITE')
require '/usr/share/redmine/config/environment'
Rails.application.eager_load!
Rails.logger.level = :warn

require "#{ENV.fetch('STATEFORK_HOOKS')}/rails"

module Statefork
  # The settings that an administrator changes are kept by the class, and it asks the database whether they are stale.
  module SlicedSettings
    def check_cache
      changed = maximum(:updated_on)
      clear_cache if changed && cleared_on[:at].to_f <= changed.to_f
    end

    def clear_cache
      @cached_settings.clear
      cleared_on[:at] = Time.now
    end

    private

    def cleared_on
      Statefork.current!.keep(:settings_cleared) { {} }
    end
  end

  # What is uploaded lies in the environment's own directory.
  module SlicedAttachments
    def storage_path
      File.join(Statefork.current!.store('media')['path'], 'files')
    end

    def thumbnails_storage_path
      File.join(Statefork.current!.store('media')['path'], 'thumbnails')
    end
  end

  # A table that is being imported waits in a file between two requests.
  module SlicedImports
    def filepath
      return super unless filename.present? && filename =~ /\A[0-9a-f]+\z/

      imports = File.join(Statefork.current!.store('media')['path'], 'imports')
      FileUtils.mkdir_p(imports)
      File.join(imports, filename)
    end
  end

  # Letters are files among the environment's uploads: they belong to its generations.
  class Outbox
    def initialize(*); end

    def deliver!(mail)
      outbox = File.join(Statefork.current!.store('media')['path'], 'outbox')
      FileUtils.mkdir_p(outbox)
      File.binwrite(File.join(outbox, "#{mail.message_id.gsub(/[^\w.@-]/, '')}.eml"), mail.encoded)
    end
  end
end

schema = "#{site}/schema_cache.yml"
Statefork.rails!(schema: File.exist?(schema) ? ActiveRecord::ConnectionAdapters::SchemaCache.load_from(schema) : nil)
Setting.instance_variable_set(:@cached_settings, Statefork::SlicedHash.new(:settings))
Setting.singleton_class.prepend(Statefork::SlicedSettings)
found = Statefork::SlicedCache.new(:search) { Statefork.memory_store }
Redmine::Search.class_variable_set(:@@cache_store, found)
Attachment.singleton_class.prepend(Statefork::SlicedAttachments)
Import.prepend(Statefork::SlicedImports)
ActionMailer::Base.add_delivery_method(:outbox, Statefork::Outbox)
ActionMailer::Base.delivery_method = :outbox
ActionMailer::Base.perform_deliveries = true
Statefork::Readiness << lambda do |bound|
  path = bound.store('media')['path']
  raise "store 'media' has no directory #{path}" unless File.directory?(path)
end

static = %w[/stylesheets /javascripts /images /themes /plugin_assets /help /favicon.ico]
Rack::Static.new(Rails.application, urls: static, root: '/usr/share/redmine/public')
