# frozen_string_literal: true

module RLX
  VERSION = "1.0.0"
end
