<?php
// A producer with Doctrine.
require_once 'Doctrine/ORM/autoload.php';
require_once 'Symfony/Component/Cache/autoload.php';

use Doctrine\DBAL\DriverManager;
use Doctrine\DBAL\Exception\DriverException;
use Doctrine\DBAL\Exception\UniqueConstraintViolationException;
use Doctrine\ORM\EntityManager;
use Doctrine\ORM\Mapping as ORM;
use Doctrine\ORM\ORMSetup;

// Calls to read, with what became of them. An entity is not for inserting: Doctrine asks the id's sequence, which a producer
// may not read. DBAL inserts instead.
#[ORM\Entity]
#[ORM\Table(name: 'call_queue')]
class MadeCall
{
    #[ORM\Id, ORM\Column(type: 'bigint'), ORM\GeneratedValue(strategy: 'IDENTITY')]
    public $id;
    #[ORM\Column(type: 'text', nullable: true)]
    public ?string $queue = null;
    #[ORM\Column(type: 'text', nullable: true, name: 'unique_key')]
    public ?string $uniqueKey = null;
    #[ORM\Column(type: 'smallint', nullable: true)]
    public ?int $priority = null;
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
$entities = fn () => EntityManager::create($connection, ORMSetup::createAttributeMetadataConfiguration([__DIR__], true));

$data = fn (string $path) => ['method' => 'POST', 'url' => getenv('API_URL') . $path, 'json' => ['order' => 4711]];
$call = fn (string $path, ?string $key = null) => [
    'queue' => 'payments', 'key' => 'acct_42', 'unique_key' => $key, 'call_data' => $data($path)];
$insert = fn (array $call) => $connection->insert('call_queue', $call, ['call_data' => 'json']);

$steps = [
    'version' => fn () => ['version' => Doctrine\ORM\Version::VERSION],

    'create' => fn () => ['id' => $connection->fetchOne(
        'INSERT INTO call_queue (queue, key, unique_key, call_data) VALUES (:queue, :key, :unique_key, :call_data) RETURNING id',
        $call('/create', 'order-4711'), ['call_data' => 'json'])],

    'bulk' => function () use ($connection, $call, $insert) {
        $connection->transactional(function () use ($call, $insert) {
            for ($i = 0; $i < 1000; $i++) {
                $insert($call("/bulk/$i"));
            }
        });
        return [];
    },

    'transaction' => function () use ($connection, $call, $insert) {
        $connection->transactional(fn () => $insert($call('/committed')));
        try {
            $connection->transactional(function () use ($call, $insert) {
                $insert($call('/rolled-back'));
                throw new DomainException('not paid');
            });
        } catch (DomainException) {
        }
        return [];
    },

    // In a transaction, each insert has a savepoint of its own, to survive a duplicate.
    'duplicates' => function () use ($connection, $call, $insert) {
        $connection->setNestTransactionsWithSavepoints(true);
        $connection->transactional(function () use ($connection, $call, $insert) {
            foreach (['/duplicates/1' => 'dup-1', '/duplicates/2' => 'dup-1', '/duplicates/3' => 'dup-2'] as $path => $key) {
                try {
                    $connection->transactional(fn () => $insert($call($path, $key)));
                } catch (UniqueConstraintViolationException) {
                }
            }
        });
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

    'diff' => fn () => ['skip' => "DBAL cannot compare a schema with arrays of text in it"],
];

echo json_encode($steps[$argv[1]](...array_slice($argv, 2)) ?: new stdClass()), "\n";
