<?php
// A producer with Doctrine.
require_once 'Doctrine/ORM/autoload.php';
require_once 'Symfony/Component/Cache/autoload.php';

use Doctrine\DBAL\DriverManager;
use Doctrine\DBAL\Exception\DriverException;
use Doctrine\ORM\EntityManager;
use Doctrine\ORM\Mapping as ORM;
use Doctrine\ORM\ORMSetup;
use Doctrine\ORM\Tools\SchemaTool;

// What a producer may set. No property has a default, so that callq's hold.
#[ORM\MappedSuperclass]
abstract class CallFields
{
    #[ORM\Id, ORM\Column(type: 'bigint'), ORM\GeneratedValue(strategy: 'IDENTITY')]
    public ?string $id = null;
    #[ORM\Column(type: 'text', nullable: true)]
    public ?string $queue = null;
    #[ORM\Column(type: 'text', nullable: true)]
    public ?string $task = null;
    #[ORM\Column(type: 'text', nullable: true)]
    public ?string $key = null;
    #[ORM\Column(name: 'call_data', type: 'json', options: ['jsonb' => true])]
    public array $callData = [];
    #[ORM\Column(type: 'bigint', nullable: true)]
    public ?string $cost = null;
    #[ORM\Column(type: 'smallint', nullable: true)]
    public ?int $priority = null;
    #[ORM\Column(name: 'run_at', type: 'text', nullable: true)]
    public ?string $runAt = null;
    #[ORM\Column(name: 'expires_at', type: 'text', nullable: true)]
    public ?string $expiresAt = null;
    #[ORM\Column(name: 'unique_key', type: 'text', nullable: true)]
    public ?string $uniqueKey = null;
    #[ORM\Column(name: 'max_attempts', type: 'integer', nullable: true)]
    public ?int $maxAttempts = null;
}

#[ORM\Entity]
#[ORM\Table(name: 'call_queue')]
class Call extends CallFields
{
}

// Calls to read, with what became of them.
#[ORM\Entity]
#[ORM\Table(name: 'call_queue')]
class MadeCall extends CallFields
{
    #[ORM\Column(type: 'text')]
    public string $status;
    #[ORM\Column(type: 'integer')]
    public int $attempts;
    #[ORM\OneToMany(targetEntity: Attempt::class, mappedBy: 'call')]
    #[ORM\OrderBy(['attempt' => 'ASC'])]
    public $results;
}

#[ORM\Entity]
#[ORM\Table(name: 'call_attempts')]
class Attempt
{
    #[ORM\Id, ORM\ManyToOne(targetEntity: MadeCall::class, inversedBy: 'results')]
    #[ORM\JoinColumn(name: 'call_id')]
    public $call;
    #[ORM\Id, ORM\Column(type: 'integer')]
    public int $attempt;
    #[ORM\Column(type: 'json', nullable: true)]
    public $result;
}

$url = parse_url(getenv('DATABASE_URL'));
$connection = DriverManager::getConnection([
    'driver' => 'pdo_pgsql', 'host' => $url['host'], 'port' => $url['port'], 'user' => $url['user'],
    'password' => $url['pass'], 'dbname' => substr($url['path'], 1),
]);
$entities = function () use ($connection): EntityManager {
    $configuration = ORMSetup::createAttributeMetadataConfiguration([__DIR__], true);
    // callq migrates its tables itself.
    $configuration->setSchemaIgnoreClasses([Call::class, MadeCall::class, Attempt::class]);
    return EntityManager::create($connection, $configuration);
};
$connection->getConfiguration()->setSchemaAssetsFilter(
    fn ($asset) => !preg_match('/^(callq\.|call_queue|call_attempts)/', is_string($asset) ? $asset : $asset->getName()));
$manager = $entities();

$api = getenv('API_URL');
$data = fn (string $path) => ['method' => 'POST', 'url' => $api . $path, 'json' => ['order' => 4711]];
$call = function (string $path, ?string $uniqueKey = null) use ($data): Call {
    $call = new Call();
    $call->queue = 'payments';
    $call->key = 'acct_42';
    $call->uniqueKey = $uniqueKey;
    $call->callData = $data($path);
    return $call;
};

$steps = [
    'version' => fn () => ['version' => Doctrine\ORM\Version::VERSION],

    'create' => function () use ($manager, $api) {
        $made = new Call();
        $made->queue = 'payments';
        $made->key = 'acct_42';
        $made->uniqueKey = 'order-4711';
        $made->callData = ['method' => 'POST', 'url' => "$api/create", 'json' => ['order' => 4711]];
        $manager->persist($made);
        $manager->flush();
        return ['id' => $made->id];
    },

    'bulk' => function () use ($manager, $call) {
        $calls = array_map(fn ($i) => $call("/bulk/$i"), range(0, 999));
        array_map($manager->persist(...), $calls);
        $manager->flush();
        return ['ids' => array_column($calls, 'id')];
    },

    'transaction' => function () use ($entities, $call) {
        $entities()->wrapInTransaction(fn ($manager) => $manager->persist($call('/committed')));
        try {
            $entities()->wrapInTransaction(function ($manager) use ($call) {
                $manager->persist($call('/rolled-back'));
                $manager->flush();
                throw new DomainException('not paid');
            });
        } catch (DomainException) {
        }
        return [];
    },

    // A duplicate would close the entity manager. DBAL inserts instead.
    'duplicates' => function () use ($connection, $data) {
        foreach (['/duplicates/1' => 'dup-1', '/duplicates/2' => 'dup-1', '/duplicates/3' => 'dup-2'] as $path => $key) {
            $connection->executeStatement(
                "INSERT INTO call_queue (queue, unique_key, call_data) VALUES ('payments', :key, :data) ON CONFLICT DO NOTHING",
                ['key' => $key, 'data' => $data($path)], ['data' => 'json']);
        }
        return [];
    },

    'upsert' => fn () => ['ids' => $connection->transactional(fn () => array_map(fn ($path) => $connection->fetchOne(
        "SELECT id FROM enqueue_call('http', :data, queue => 'payments', unique_key => 'up-1')",
        ['data' => $data($path)], ['data' => 'json']), ['/upsert/1', '/upsert/2']))],

    'read' => function ($id) use ($entities) {
        $made = $entities()->find(MadeCall::class, $id);
        return ['status' => $made->status, 'result' => $made->results->last()->result];
    },

    'stale' => function ($id) use ($entities) {
        $manager = $entities();
        $made = $manager->find(MadeCall::class, $id);
        echo json_encode(['loaded' => $made->id]), "\n";
        fgets(STDIN);
        $made->priority = 9;
        try {
            $manager->flush();
        } catch (DriverException $e) {
            return ['sqlstate' => $e->getSQLState()];
        }
        return ['sqlstate' => 'ok'];
    },

    // What `orm:schema-tool:update` would run.
    'diff' => function () use ($manager) {
        return ['tables' => (new SchemaTool($manager))->getUpdateSchemaSql($manager->getMetadataFactory()->getAllMetadata())];
    },
];

echo json_encode($steps[$argv[1]](...array_slice($argv, 2)) ?: new stdClass()), "\n";
