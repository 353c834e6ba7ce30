# A producer with ActiveRecord.
require "active_record"
require "json"

ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))
ActiveRecord::Base.default_timezone = :utc if ActiveRecord::Base.respond_to?(:default_timezone=)

class Call < ActiveRecord::Base
  self.table_name = "call_queue"
  self.partial_inserts = true if respond_to?(:partial_inserts=) # send what was set; Rails 6 does so anyway
  self.record_timestamps = false # created_at is callq's
  has_many :results, -> { order(:attempt) }, class_name: "Attempt", foreign_key: :call_id
end

class Attempt < ActiveRecord::Base
  self.table_name = "call_attempts"
end

# callq migrates its tables itself: schema.rb leaves them out.
ActiveRecord::SchemaDumper.ignore_tables = %w[call_queue call_attempts]

API = ENV.fetch("API_URL")

def data(path)
  { method: "POST", url: API + path, json: { order: 4711 } }
end

def call(path, unique_key = nil)
  { queue: "payments", key: "acct_42", unique_key: unique_key, call_data: data(path) }
end

STEPS = {
  "version" => -> { { version: ActiveRecord::VERSION::STRING } },

  "create" => lambda do
    made = Call.create!(queue: "payments", key: "acct_42", unique_key: "order-4711", call_data: {
      method: "POST", url: API + "/create", json: { order: 4711 } })
    { id: made.id }
  end,

  "bulk" => lambda do
    rows = Call.insert_all!(1000.times.map { |i| call("/bulk/#{i}") }, returning: :id)
    { ids: rows.map { |row| row["id"] } }
  end,

  "transaction" => lambda do
    Call.transaction { Call.create!(call("/committed")) }
    Call.transaction do
      Call.create!(call("/rolled-back"))
      raise ActiveRecord::Rollback
    end
    {}
  end,

  "duplicates" => lambda do
    Call.insert_all([call("/duplicates/1", "dup-1"), call("/duplicates/2", "dup-1"), call("/duplicates/3", "dup-2")])
    {}
  end,

  "upsert" => lambda do
    # create_or_find_by reads every column of the one it finds, which a producer may not.
    ids = Call.transaction do
      ["/upsert/1", "/upsert/2"].map do |path|
        Call.insert(call(path, "up-1"), unique_by: :call_queue_unique_idx)
        Call.where(queue: "payments", unique_key: "up-1").pick(:id)
      end
    end
    { ids: ids }
  end,

  "read" => lambda do |id|
    made = Call.find(id)
    { status: made.status, result: made.results.last.result }
  end,

  "stale" => lambda do |id|
    made = Call.find(id)
    puts({ loaded: made.id }.to_json)
    $stdout.flush
    $stdin.gets
    made.priority = 9
    begin
      made.save!
      { sqlstate: "ok" }
    rescue ActiveRecord::StatementInvalid => e
      { sqlstate: e.cause.result.error_field(PG::Result::PG_DIAG_SQLSTATE) }
    end
  end,

  # What schema.rb would hold: rails db:schema:load drops and creates these.
  "diff" => lambda do
    schema = StringIO.new
    ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, schema)
    { tables: schema.string.scan(/create_table "(\w+)"/).flatten }
  end,
}.freeze

puts STEPS.fetch(ARGV[0]).call(*ARGV[1..]).to_json
