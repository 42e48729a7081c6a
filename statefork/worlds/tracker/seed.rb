# frozen_string_literal: true

# Redmine's tables, its default data, and a small company at work. Run in Redmine's directory by build.py.

require 'json'

def report(fraction, text)
  puts "@#{JSON.generate([fraction.round(3), text])}"
  $stdout.flush
end

report(0.0, 'starting Redmine')
require '/usr/share/redmine/config/environment'
require 'active_support/testing/time_helpers'
Rails.logger = Logger.new(IO::NULL)
ActiveRecord::Base.logger = nil

told = JSON.parse(ENV.fetch('STATEFORK_DATABASE'))
ActiveRecord::Base.establish_connection(
  adapter: 'postgresql', host: told['host'], port: told['port'], database: told['dbname'],
  username: told['user'], password: told['password'], min_messages: 'warning'
)

# One moment and one seed: the same recipe gives the same rows.
include ActiveSupport::Testing::TimeHelpers
travel_to(Time.utc(2025, 3, 3, 9, 0, 0))
srand(7)
CHANCE = Random.new(7)
SecureRandom.define_singleton_method(:gen_random) { |size| CHANCE.bytes(size) }
SecureRandom.define_singleton_method(:bytes) { |size| CHANCE.bytes(size) }

if ARGV == ['tables'] # by a process of its own: a class that has met a table half made does not forget it
  ActiveRecord::Migration.verbose = false
  migrations = ActiveRecord::MigrationContext.new('db/migrate', ActiveRecord::SchemaMigration)
  versions = migrations.migrations.map(&:version)
  versions.each_slice(10).with_index do |slice, index|
    report(0.3 + 0.7 * index * 10 / versions.size, 'creating tables')
    migrations.up(slice.last)
  end
  exit
end

report(0.2, 'default data')
Redmine::DefaultData::Loader.load('en')

Setting['rest_api_enabled'] = '1'
Setting['host_name'] = 'tracker.example'
Setting['mail_from'] = 'tracker@tracker.example'
Setting['app_title'] = 'Tracker'
Setting['default_language'] = 'en'
Setting['notified_events'] = []
ActionMailer::Base.perform_deliveries = false
User.current = admin = User.find_by_login('admin')
admin.password = admin.password_confirmation = 'admin1234'
admin.must_change_passwd = false
admin.mail = 'admin@tracker.example'
admin.save!

WORDS = %w[cart checkout login search index cache deploy build image upload avatar theme webhook token queue worker mail
           report export import table chart user role group page form button menu filter].freeze
NAMES = %w[Ada Ben Cleo Dora Emil Fay Gus Hana Ivo June Karl Lena].freeze

def words(count)
  Array.new(count) { WORDS.sample }.join(' ')
end

users = NAMES.map do |name|
  user = User.new(firstname: name, lastname: 'Example', mail: "#{name.downcase}@tracker.example", language: 'en')
  user.login = name.downcase
  user.password = user.password_confirmation = 'password1'
  user.save!
  user
end
trackers = Tracker.sorted.to_a
statuses = IssueStatus.sorted.to_a
priorities = IssuePriority.active.to_a
manager = Role.find_by!(name: 'Manager')
developer = Role.find_by!(name: 'Developer')
TITLES = ['Web shop', 'Mobile app', 'Search', 'Payments', 'Back office', 'Website'].freeze

TITLES.each_with_index do |title, index|
  report(0.3 + 0.65 * index / TITLES.size, 'projects and issues')
  project = Project.new(name: title, identifier: title.parameterize, is_public: true, description: words(12))
  project.trackers = trackers
  project.enabled_module_names = %w[issue_tracking wiki news boards time_tracking documents files calendar gantt]
  project.save!
  members = users.sample(5)
  members.each_with_index do |user, place|
    Member.create!(project: project, principal: user, roles: [place.zero? ? manager : developer])
  end
  version = Version.create!(project: project, name: '1.0')
  project.reload
  30.times do
    Issue.create!(
      project: project, tracker: trackers.sample, status: statuses.sample, priority: priorities.sample,
      author: members.sample, assigned_to: ([nil] + members).sample, fixed_version: [nil, nil, version].sample,
      subject: "#{words(2).capitalize} fails on #{words(1)}", description: "#{words(14).capitalize}."
    )
  end
  wiki = project.wiki || Wiki.create!(project: project, start_page: 'Wiki')
  %w[Wiki Deployment Glossary].each do |name|
    page = WikiPage.new(wiki: wiki, title: name)
    page.content = WikiContent.new(page: page, text: "h1. #{name}\n\n#{words(30).capitalize}.", author: members.sample)
    page.save!
  end
  board = Board.create!(project: project, name: 'General', description: 'What else there is')
  4.times { Message.create!(board: board, subject: words(3).capitalize, content: words(12), author: members.sample) }
  News.create!(project: project, author: members.sample, title: "#{title} 1.0", description: words(20))
end

report(0.96, 'statistics')
Setting.where(name: 'notified_events').delete_all
Token.delete_all
ActiveRecord::Base.connection.execute('ANALYZE')
ActiveRecord::Base.connection.schema_cache.tap do |cache|
  ActiveRecord::Base.connection.data_sources.each { |table| cache.add(table) }
  cache.dump_to("#{ENV.fetch('STATEFORK_BASE')}/site/schema_cache.yml")
end
report(1.0, 'seeded')
