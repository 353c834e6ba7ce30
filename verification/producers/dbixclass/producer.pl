# A producer with DBIx::Class.
use v5.30;
use warnings;

# What a producer may set. No column has a default, so that callq's hold.
package Shop::Schema::Result::Call;
use base 'DBIx::Class::Core';
__PACKAGE__->table('call_queue');
__PACKAGE__->add_columns(
    id => { is_auto_increment => 1 },
    map { $_ => { is_nullable => 1 } } qw(queue task key call_data cost priority run_at expires_at unique_key max_attempts)
);
__PACKAGE__->set_primary_key('id');

# A call to read, with what became of it.
package Shop::Schema::Result::MadeCall;
use base 'Shop::Schema::Result::Call';
__PACKAGE__->table('call_queue');
__PACKAGE__->add_columns(qw(status attempts));
__PACKAGE__->has_many(results => 'Shop::Schema::Result::Attempt', 'call_id');

package Shop::Schema::Result::Attempt;
use base 'DBIx::Class::Core';
__PACKAGE__->table('call_attempts');
__PACKAGE__->add_columns(qw(call_id attempt outcome result));
__PACKAGE__->set_primary_key(qw(call_id attempt));

package Shop::Schema;
use base 'DBIx::Class::Schema';
__PACKAGE__->register_class(Call     => 'Shop::Schema::Result::Call');
__PACKAGE__->register_class(MadeCall => 'Shop::Schema::Result::MadeCall');
__PACKAGE__->register_class(Attempt  => 'Shop::Schema::Result::Attempt');

package main;
use JSON;
use URI;

$| = 1;
my $json = JSON->new->canonical;
my $url  = URI->new($ENV{DATABASE_URL} =~ s/^postgresql/http/r);
my ($user, $password) = split /:/, $url->userinfo;
my $schema = Shop::Schema->connect('dbi:Pg:dbname=' . substr($url->path, 1) . ';host=' . $url->host . ';port=' . $url->port,
    $user, $password, { PrintError => 0, quote_names => 1 });
my $api   = $ENV{API_URL};
my $calls = $schema->resultset('Call');

sub call {
    my ($path, $unique_key) = @_;
    my $data = { method => 'POST', url => $api . $path, json => { order => 4711 } };
    return { queue => 'payments', key => 'acct_42', unique_key => $unique_key, call_data => $json->encode($data) };
}

my %steps = (
    version => sub { { version => $DBIx::Class::VERSION } },

    create => sub {
        my $made = $calls->create({
            queue      => 'payments',
            key        => 'acct_42',
            unique_key => 'order-4711',
            call_data  => $json->encode({ method => 'POST', url => "$api/create", json => { order => 4711 } }),
        });
        { id => $made->id };
    },

    bulk => sub { $calls->populate([map { call("/bulk/$_") } 0 .. 999]); {} },

    transaction => sub {
        $schema->txn_do(sub { $calls->create(call('/committed')) });
        eval {
            $schema->txn_do(sub { $calls->create(call('/rolled-back')); die "not paid\n" });
        };
        die $@ unless $@ =~ /not paid/;
        {};
    },

    # It has no ON CONFLICT: it searches first.
    duplicates => sub {
        $schema->txn_do(sub {
            for (['/duplicates/1', 'dup-1'], ['/duplicates/2', 'dup-1'], ['/duplicates/3', 'dup-2']) {
                next if $calls->search({ queue => 'payments', unique_key => $_->[1] })->count;
                $calls->create(call(@$_));
            }
        });
        {};
    },

    upsert => sub {
        my @ids;
        $schema->txn_do(sub {
            for my $path ('/upsert/1', '/upsert/2') {
                my $found = $calls->search({ queue => 'payments', unique_key => 'up-1' }, { columns => ['id'] })->first
                    // $calls->create(call($path, 'up-1'));
                push @ids, $found->id;
            }
        });
        { ids => \@ids };
    },

    read => sub {
        my $made = $schema->resultset('MadeCall')->find($_[0]);
        my $last = $made->results->search({}, { order_by => { -desc => 'attempt' }, rows => 1 })->first;
        { status => $made->status, result => $json->decode($last->result) };
    },

    stale => sub {
        my $made = $schema->resultset('MadeCall')->find($_[0]);
        say $json->encode({ loaded => $made->id });
        <STDIN>;
        $made->priority(9);
        my $state = 'ok';
        eval { $made->update; 1 } or $state = $schema->storage->dbh->state || "$@";
        { sqlstate => $state };
    },

    diff => sub { { skip => 'it compares no model with the database' } },
);

my ($step, @args) = @ARGV;
say $json->encode($steps{$step}->(@args));
