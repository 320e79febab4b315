#!/usr/bin/perl
# A client of RLX 1 (JSON, plain TCP) with a corridor of 5 cells.   perl stranger.pl HOST:PORT [EPISODES]     Token: RLX_TOKEN
use strict; use warnings; use IO::Socket::IP; use IO::Select; use Socket qw(IPPROTO_TCP TCP_NODELAY SOL_SOCKET SO_SNDTIMEO);
use JSON::PP (); use MIME::Base64; use Encode (); use Time::HiRes qw(time sleep);

$SIG{PIPE} = 'IGNORE'; $| = 1; binmode STDERR, ':utf8';
my ($host, $port) = ($ARGV[0] // '') =~ /^\[?(.+?)\]?:(\d+)$/ or die "usage: stranger.pl HOST:PORT [EPISODES]\n";
my ($session, $failures, $done, $sock, $in, $limit, $patience, $began) = ('', 0, 0);    # from $sock on: state of one connection
sub mistake { die { mistake => 1, text => substr "the server's mistake: @_", 0, 200 } }
sub lost    { die { retry => 1, text => "@_" } }

# --- JSON: JSON::PP keeps the last value of a repeated key; RLX refuses it
sub parse {
    my $text = eval { Encode::decode('UTF-8', $_[0], Encode::FB_CROAK) } // mistake('bad UTF-8');
    my $tree = eval { JSON::PP->new->max_depth(100)->decode($text) } // mistake("bad JSON: $@");
    my @open;    # the keys of each open object or array
    while ($text =~ /("(?:[^"\\]++|\\.)*+")(\s*:)?|([\[{])|([\]}])/g) {
        if ($3) { push @open, {} } elsif ($4) { pop @open }
        elsif ($2) { $open[-1]{ JSON::PP->new->allow_nonref->decode("$1") }++ and mistake("the key $1 twice") }
    }
    return $tree;
}

# --- the server's messages: field => type; a * is a list
my %MESSAGE = (
    welcome => { protocolVersion => 'uint32', serverVersion => 'text', sessionId => 'text', algorithm => 'text', limits => 'Limits' },
    actions => { action => 'Array*' }, episodeReturns => { episodeReturn => 'double*' },
    error => { code => 'enum', message => 'text', retryable => 'bool', retryAfterSeconds => 'double' },
    trainingFinished => { message => 'text', globalStep => 'uint64' },
    ping => { nonce => 'uint32' }, pong => { nonce => 'uint32' }, bye => { reason => 'text' });
my %TYPE = (%MESSAGE, Server => { map { $_ => $_ } keys %MESSAGE },
    Limits => { maxFrameBytes => 'uint32', idleTimeoutSeconds => 'double', heartbeatSeconds => 'double',
                maxMetricNameBytes => 'uint32', maxMetricNames => 'uint32', maxEnvironments => 'uint32' },
    Array => { dtype => 'enum', shape => 'uint32*', data => 'bytes' });
sub typed {    # a parsed value as plain Perl
    my ($type, $v, $name) = @_;
    if ($type =~ /(.*)\*$/) { return [ map { typed($1, $_, $name) } ref $v eq 'ARRAY' ? @$v : mistake("$name is no list") ] }
    if (my $fields = $TYPE{$type}) {
        ref $v eq 'HASH' or mistake("$name is no object");
        my %out;
        for my $field (keys %$fields) {
            (my $snake = $field) =~ s/([A-Z])/_\l$1/g;
            mistake("$field under two names") if $snake ne $field && exists $v->{$snake} && exists $v->{$field};
            defined and $out{$field} = typed($fields->{$field}, $_, $field) for $v->{$field} // $v->{$snake};
        }
        return \%out;
    }
    if ($type eq 'bool') { return JSON::PP::is_bool($v) ? !!$v : mistake("$name is no bool") }
    my $number = !defined $v || ref $v ? mistake("$name is no $type") : JSON::PP->new->allow_nonref->encode($v);
    undef $number if $number =~ /^"/;    # a string in the JSON
    return $v if $type eq 'text' && !defined $number || $type eq 'enum' && ($number // 1) =~ /^-?\d+\z/a;
    if ($type eq 'bytes' && !defined $number && $v !~ /[^!-~]/ && encode_base64(decode_base64($v), '') eq $v) { return decode_base64($v) }
    mistake("$name is no $type") if $type !~ /int|double/ || ($number // $v) !~ /^-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\z/a;
    my $max = $type eq 'uint32' ? 2**32 - 1 : 2**64;
    mistake("$name is out of range") if abs $v == 9**9**9 || $type =~ /int/ && ($v != int $v || $v < 0 || $v > $max);
    return $v + 0;
}

# --- frames and turns
sub send_message {
    my $frame = pack 'N/a*', JSON::PP->new->utf8->encode($_[0]);
    die "a frame over the limit\n" if length $frame > $limit + 4;
    while (length $frame) { substr $frame, 0, syswrite($sock, $frame) || return, '' }    # if it fails, the next read reports the reason
}
sub receive_message {    # returns the next message as (kind, fields); an empty list if $wait is 0 and no message has arrived
    my $wait = shift;
    while (1) {
        my $n = length $in < 4 ? undef : unpack 'N', $in;
        mistake("a frame of $n bytes") if defined $n && (!$n || $n > $limit);
        if ($n && length $in >= 4 + $n) {
            my $payload = substr substr($in, 0, 4 + $n, ''), 4;
            lost('an answer that is no JSON') if $payload !~ /^\{/;
            my $m = typed('Server', parse($payload), 'the message');
            return %$m if keys %$m == 1;
            mistake(%$m ? 'two messages in a frame' : 'an unknown message');
        }
        IO::Select->new($sock)->can_read($wait) or $wait ? lost('the server is silent') : return;
        sysread $sock, $in, 65536, length $in or lost('the connection was lost');
    }
}
sub wait_for {    # returns the answer of this kind; '' reads only the messages that have arrived
    my ($wanted, $wait, $early) = @_;    # $early: before the hello, when pings are not allowed
    while (my ($kind, $m) = receive_message($wait)) {
        mistake('retryAfterSeconds below 0') if ($m->{retryAfterSeconds} // 0) < 0;
        my $text = join ' ', grep defined, $kind, @$m{qw(code message reason)};
        die { retry => $m->{retryable}, after => $m->{retryAfterSeconds}, text => $text } if $kind eq 'error';
        die { finished => 1, text => $text } if $kind eq 'trainingFinished';
        lost($text) if $kind eq 'bye';
        return $m if $kind eq $wanted;
        mistake("$kind, which is not allowed now") if $early || $kind !~ /^p[io]ng$/;
        send_message({ pong => { nonce => $m->{nonce} // 0 } }) if $kind eq 'ping';
    }
}
sub request { my ($kind, $m, $wanted) = @_; wait_for('', 0, $kind eq 'hello'); send_message({ $kind => $m }); return wait_for($wanted, $patience) }
sub send_bye {
    eval { send_message({ bye => { reason => $_[0] } }) }; shutdown $sock, 1;
    my $until = time + 3;
    while ((my $left = $until - time) > 0) { IO::Select->new($sock)->can_read($left) && sysread($sock, my $drop, 65536) or last }
}

# --- the environment: from cell 0 to cell 4, action 0 is left and 1 is right
sub observation {
    my @cells = map { $_ == $_[0] ? 1 : 0 } 0 .. 4;
    return [ { dtype => 'DTYPE_FLOAT32', shape => [1, 5], data => encode_base64(pack('f<5', @cells), '') } ];
}
sub request_action {    # sends the message, and returns the action of the answer
    my @leaves = @{ request(@_, 'actions')->{action} // [] };
    mistake(@leaves . ' leaves') if @leaves != 1;
    my ($dtype, $shape, $data) = map { $_ // '' } @{ $leaves[0] }{qw(dtype shape data)};
    mistake('no action of the space') if $dtype !~ /^(DTYPE_INT64|9)\z/ || "@{ $shape || [] }" ne '1' || $data !~ /^[\0\1]\0{7}\z/;
    return unpack 'q<', $data;
}
sub play {
    ($sock, $in, $limit, $patience, $began) = (undef, '', 65536, 60, 0);
    $sock = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Type => SOCK_STREAM, Timeout => 15) or lost("no connection: $@");
    $sock->setsockopt(IPPROTO_TCP, TCP_NODELAY, 1); $sock->setsockopt(SOL_SOCKET, SO_SNDTIMEO, pack 'l!l!', 60, 0);
    my $w = request(hello => { protocolVersion => 1, clientName => 'stranger.pl', environment => 'Corridor', environments => 1, sessionId => $session,
        token => $ENV{RLX_TOKEN} // '', autoreset => ['AUTORESET_DISABLED'], mode => 'MODE_TRAIN', actionSpace => { discrete => { n => '2' } },
        observationSpace => { box => { dtype => 'DTYPE_FLOAT32', shape => [5], low => [0], high => [1] } } }, 'welcome');
    my $l = $w->{limits} // mistake('a welcome without limits');
    mistake('another version') if ($w->{protocolVersion} // 0) != 1;
    mistake('a bad session id') if ($session = $w->{sessionId} // '') !~ /^[A-Za-z0-9_-]{0,128}\z/;
    mistake('times that are not positive') if grep { ($l->{$_} // 0) <= 0 } qw(idleTimeoutSeconds heartbeatSeconds);
    mistake('frames too short for the corridor') if ($limit = $l->{maxFrameBytes} // 0) < 300;
    $patience = 3 * $l->{heartbeatSeconds}; $patience = $patience < 1 ? 1 : $patience > 1e5 ? 1e5 : $patience;
    while ($done < ($ARGV[1] // 40)) {
        my ($cell, $steps) = (0, 0);
        my $action = request_action(init => { observation => observation($cell) });
        ($began, $failures) = (1, 0);
        $action = request_action(step => { reward => [-0.1], observation => observation($cell) })
            while $cell += $action ? 1 : $cell ? -1 : 0, ++$steps < 12 && $cell < 4;
        my %end = $cell == 4 ? (reward => [1]) : (reward => [-0.1], truncated => [JSON::PP::true], finalObservation => observation($cell));
        my $returns = request('reset', \%end, 'episodeReturns')->{episodeReturn} // [];
        mistake('no returns for 1 environment') if @$returns != 1 || abs($returns->[0]) > 1e30;
        printf "episode %d: %d steps, return %g\n", ++$done, $steps, $returns->[0];
        send_message({ metrics => { scalars => [ { name => 'steps', value => $steps } ] } })
            if ($l->{maxMetricNames} // 0) && ($l->{maxMetricNameBytes} // 0) >= length 'steps';
    }
    send_bye('done');
}

while (!eval { play(); 1 }) {
    my $why = ref $@ ? $@ : die $@;
    print STDERR "$why->{text}\n";
    exit 0 if $why->{finished};
    send_bye($why->{text}) if $why->{mistake};
    close $sock if $sock;
    exit 1 if !($why->{retry} || $why->{mistake} && $began) || ++$failures > 10;
    sleep(($why->{after} // 0) + ($failures > 6 ? 30 : 0.25 * 2 ** $failures) * (0.5 + rand 0.5));
}
