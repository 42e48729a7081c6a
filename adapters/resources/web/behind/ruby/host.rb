# frozen_string_literal: true

# The process behind the server: puma, the application, and a channel to the server on standard input and output.
# Started by the adapter, never by hand.

require 'json'

channel = STDOUT.dup
channel.sync = true
STDOUT.reopen(STDERR)
told = JSON.parse(ENV.delete('STATEFORK_BEHIND'))

# Before the application's bundle hides what it does not name.
require 'puma'
require 'puma/server'
require 'nio'
require 'objspace'
require_relative 'bound'
require_relative 'chance'
require_relative 'edge'
require_relative 'control'

saying = Mutex.new
say = ->(message) { saying.synchronize { channel.puts(JSON.generate(message)) } }
Statefork.begin_serving([told['key']].pack('H*'), &say)

application = TOPLEVEL_BINDING.eval(File.read(told['application']), told['application'])
require_relative 'inherit'
Statefork.inherit!
if defined?(Statefork::Pools)
  Statefork::Pools.per_binding_max = told['connections_per_binding_max']
  Statefork::Pools.connections_max = told['connections_max']
end

Thread.new { Statefork::Control.new(STDIN, say).run }

edge = Statefork::Edge.new(application, told['ready'])
threads = told['threads']
server = Puma::Server.new(edge, Puma::Events.stdio, min_threads: 2, max_threads: threads)
server.add_unix_listener(told['socket'])
server.run.join
