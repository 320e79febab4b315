# frozen_string_literal: true

require_relative "lib/rlx/version"

Gem::Specification.new do |gem|
  gem.name = "rlx"
  gem.version = RLX::VERSION
  gem.summary = "Client of RLX, the protocol between environments and a reinforcement-learning server"
  gem.authors = ["the RELAAX authors"]
  gem.license = "MIT"
  gem.required_ruby_version = ">= 2.7"
  gem.files = Dir["lib/**/*.rb", "examples/*.rb", "README.md"]
  gem.metadata["rubygems_mfa_required"] = "true"
end
