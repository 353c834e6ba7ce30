# A producer with Sequel.
require "json"
require "sequel"

DB = Sequel.connect(ENV.fetch("DATABASE_URL"))
DB.extension :pg_json

# Datasets insert what is set. A model's save reads the whole row back, which a producer may not.
CALLS = DB[:call_queue]

class Call < Sequel::Model(:call_queue)
  one_to_many :results, class: :Attempt, key: :call_id, order: :attempt
end

class Attempt < Sequel::Model(:call_attempts)
end

API = ENV.fetch("API_URL")

def data(path)
  Sequel.pg_jsonb({ method: "POST", url: API + path, json: { order: 4711 } })
end

def call(path, unique_key = nil)
  { queue: "payments", key: "acct_42", unique_key: unique_key, call_data: data(path) }
end

STEPS = {
  "version" => -> { { version: Sequel.version } },

  "create" => lambda do
    id = CALLS.insert(queue: "payments", key: "acct_42", unique_key: "order-4711", call_data: Sequel.pg_jsonb(
      { method: "POST", url: API + "/create", json: { order: 4711 } }))
    { id: id }
  end,

  "bulk" => lambda do
    { ids: CALLS.returning(:id).multi_insert(1000.times.map { |i| call("/bulk/#{i}") }, return: :primary_key) }
  end,

  "transaction" => lambda do
    DB.transaction { CALLS.insert(call("/committed")) }
    DB.transaction do
      CALLS.insert(call("/rolled-back"))
      raise Sequel::Rollback
    end
    {}
  end,

  "duplicates" => lambda do
    CALLS.insert_conflict.multi_insert([call("/duplicates/1", "dup-1"), call("/duplicates/2", "dup-1"), call("/duplicates/3", "dup-2")])
    {}
  end,

  "upsert" => lambda do
    ids = DB.transaction do
      ["/upsert/1", "/upsert/2"].map do |path|
        CALLS.insert_conflict.insert(call(path, "up-1"))
        CALLS.where(queue: "payments", unique_key: "up-1").get(:id)
      end
    end
    { ids: ids }
  end,

  "read" => lambda do |id|
    made = Call[id.to_i]
    { status: made.status, result: made.results.last.result }
  end,

  "stale" => lambda do |id|
    made = Call[id.to_i]
    puts({ loaded: made.id }.to_json)
    $stdout.flush
    $stdin.gets
    made.priority = 9
    begin
      made.save
      { sqlstate: "ok" }
    rescue Sequel::DatabaseError => e
      { sqlstate: e.wrapped_exception.result.error_field(PG::Result::PG_DIAG_SQLSTATE) }
    end
  end,

  "diff" => -> { { skip: "it compares no model with the database" } },
}.freeze

puts STEPS.fetch(ARGV[0]).call(*ARGV[1..]).to_json
