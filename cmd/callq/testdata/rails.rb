# What an application has around the Ruby of docs/producers.md, and what the page says of it.
require "active_record"

ActiveRecord::Base.establish_connection(adapter: "postgresql")

class ApplicationRecord < ActiveRecord::Base
  self.abstract_class = true
  singleton_class.alias_method :partial_inserts=, :partial_writes= unless respond_to?(:partial_inserts=) # Rails 6
  self.partial_inserts = false # as in a new application
end

sent = []
ActiveSupport::Notifications.subscribe("sql.active_record") do |*, payload|
  sent << payload[:sql] if payload[:sql].start_with?("INSERT")
end

# the page's block

puts sent.last

def refused(error)
  Call.transaction(requires_new: true) { yield }
  raise "not refused"
rescue ActiveRecord::StatementInvalid => e
  raise unless e.cause.is_a?(error)
end

twice = { queue: "payments", unique_key: "twice", call_data: {} }
Call.transaction do
  first = Call.create!(twice)
  refused(PG::UniqueViolation) { Call.create!(twice) }
  raise "insert made a duplicate" unless Call.insert(twice).empty?
  raise "not the one that is there" unless Call.where(unique_key: "twice").pluck(:id) == [first.id]
  refused(PG::InFailedSqlTransaction) do
    Call.create!(twice)
  rescue ActiveRecord::RecordNotUnique
    Call.insert(twice)
  end
  raise ActiveRecord::Rollback
end
raise "not rolled back" if Call.where(unique_key: "twice").exists?

Call.partial_inserts = false
refused(PG::InsufficientPrivilege) { Call.create!(key: "status and attempts") }
Call.partial_inserts = true
Call.record_timestamps = true
refused(PG::InsufficientPrivilege) { Call.create!(key: "created_at") }
