//! Every field of the file: its name, its shape, what holds without it and what it says.
//!
//! The comments are Markdown, and so is what stands in `Like`: `make docs` prints both into `docs/config.md`. What a
//! field can be is said where it is checked.

use super::raw::{Field, List, RawRate, Text, fields};
use super::reference::Without::{Is, Like, Needed, Nothing};

fields! {
    /// With `domain` on top it is a rules file of envoyproxy/ratelimit, too.
    RawConfig in "" {
        /// Who this pod is.
        pod: Field<RawPod> = Nothing,
        /// Where the doors are.
        listen: Field<RawListen> =
            Is(r#"{ http: ["127.0.0.1:7600"], metrics: ["127.0.0.1:9464"], admin: ["127.0.0.1:7601"] }"#),
        /// The fleet's Redis ([sync.md](sync.md)). Without it, and without `REDIS_URL`, each pod limits alone.
        store: Field<RawStore> = Nothing,
        /// When to talk to the store ([how to choose](sync.md#how-to-size-it)).
        sync: Field<RawSync> = Nothing,
        /// What holds for every rule that does not say otherwise.
        defaults: Field<RawDefaults> = Nothing,
        /// How much a pod holds at most.
        bounds: Field<RawBounds> = Nothing,
        /// Which entries hold IP addresses.
        addresses: Field<RawAddresses> = Nothing,
        /// Which entries hold paths of URLs.
        paths: Field<RawPaths> = Nothing,
        /// Which headers a check's answer has. `draft-11`: `RateLimit` and `RateLimit-Policy`. `legacy`:
        /// `X-RateLimit-*`, Reset in seconds from now. `legacy-epoch`: the same with Reset as a Unix time; only one of
        /// these two. `[]`: none. A denial's `Retry-After` comes with any.
        headers: List<String> = Is("[draft-11, legacy]"),
        /// What `/admin/v1/top`, its page and `tidegate top` call denied keys. `plain`: by the values that clients
        /// sent. `hashed`: by a hash; the values are not kept. Give `store.hash_key_file` then, or a value can be found
        /// by guessing.
        keys: Text = Is("plain"),
        /// What to log.
        log: Field<RawLog> = Nothing,
        /// How long an orderly stop may take.
        drain: Text = Is("10s"),
        /// Domains: each is what a rules file of envoyproxy/ratelimit holds.
        rules: List<RawDomain> = Nothing,
        /// A folder, relative to this file's. Every file in it and in its folders is one more domain, whatever its name,
        /// as in envoyproxy/ratelimit. Not read, each with a warning: what begins with a dot or ends in `~`, links to
        /// folders. At most 1000 files and 100 folders.
        rules_dir: Text = Nothing,
        /// As in `rules[]`: with it the file is a domain itself.
        domain: Text = Nothing,
        /// As in `rules[]`.
        matching as "match": Text = Nothing,
        /// As in `rules[]`.
        descriptors: List<RawNode> = Nothing,
    }

    RawPod in "pod" {
        /// What the admin API and the log call it. An empty one is none.
        id: Text = Like("`POD_NAME`, or `HOSTNAME`, or what `/etc/hostname` says, or `pod`"),
    }

    /// A door that a `listen` section does not name is off. Two cannot share an address; port 0 is any that is free. A
    /// relative path of a socket begins in the working directory. What is open to other hosts gets a warning, if checks
    /// can be asked there without a password.
    RawListen in "listen" {
        /// Checks over HTTP.
        http: List<String> = Is("[]"),
        /// Envoy's rate limit service ([guides/envoy.md](guides/envoy.md)).
        grpc: List<String> = Is("[]"),
        /// The Redis protocol: `CL.THROTTLE`, `TG.CHECK` ([resp.md](resp.md)).
        resp: List<String> = Is("[]"),
        /// `/metrics`, `/livez`, `/readyz`: read-only, safe to expose to the pod network.
        metrics: List<String> = Is("[]"),
        /// Changes things ([admin.md](admin.md)). Beyond loopback it needs a `token_file`.
        admin: List<String> = Is("[]"),
        /// Of the Unix sockets.
        unix_mode: Text = Is(r#""0660""#),
        /// A file with the bearer token that requests to `admin` have to carry, all but that for its page.
        token_file: Text = Nothing,
        /// A file with a password that clients of `resp` have to give: `AUTH PASSWORD`, or `HELLO 3 AUTH default
        /// PASSWORD`.
        resp_password_file: Text = Nothing,
    }

    RawStore in "store" {
        /// `redis[s]://[user[:password]@]host[:port],...[/database]`, or `unix:///path[?db=N&user=U&pass=P]`. `rediss`
        /// is TLS. Hosts are a list for sentinels and for a cluster; `single` uses the first. The port is 6379, of
        /// sentinels 26379; the database is 0, and nothing else with `cluster`. User and password are percent-encoded.
        url: Text = Needed,
        /// What stands there. Sentinels and clusters have hosts, not a socket.
        topology: Text = Is("single"),
        /// With `sentinel` needed, and only there: the name to ask the sentinels for.
        master: Text = Nothing,
        /// A file with the password; beats one in `url`. The user stays in `url`.
        password_file: Text = Nothing,
        /// Certificates for `rediss://`, files in PEM.
        tls: Field<RawTls> = Nothing,
        /// Of any call, connecting included; a strict check waits no longer.
        timeout: Text = Is("250ms"),
        /// What every key in Redis starts with. Fleets that share a Redis need different ones.
        key_prefix: Text = Is("tidegate"),
        /// A file with a secret that keys are hashed with: the same bytes for every pod of the fleet. Without one it is
        /// made of `key_prefix`, and who knows that could look for values that share a bucket. Set it if strangers
        /// choose your keys' values.
        hash_key_file: Text = Nothing,
    }

    RawTls in "store.tls" {
        /// Whom to trust, instead of the system's list.
        ca_file: Text = Nothing,
        /// This pod's certificate, for servers that ask for one. Goes with `key_file`.
        cert_file: Text = Nothing,
        /// The key of `cert_file`.
        key_file: Text = Nothing,
    }

    RawSync in "sync" {
        /// The slowest a key that has cells to tell is told.
        interval: Text = Is("1s"),
        /// The part of a bucket that the store may not have seen.
        accuracy: Text = Is("0.1"),
    }

    /// All but `algorithm` also hold for [limits that callers carry](sync.md#limits-that-callers-carry).
    RawDefaults in "defaults" {
        /// As in `rate_limit`.
        algorithm: Text = Is("gcra"),
        /// As beside `rate_limit`.
        consistency: Text = Is("hybrid"),
        /// As beside `rate_limit`.
        on_store_error: Text = Is("local_share"),
        /// As beside `rate_limit`.
        report: Text = Is("contested"),
    }

    RawBounds in "bounds" {
        /// Keys held, of level rules, of windowed rules and of carried limits each.
        keys_max: Text = Is("1000000"),
        /// Connections of all doors for checks together; one more is told so (HTTP: 503) and closed. Fewer, with a
        /// warning, where the system allows too few open files.
        connections_max: Text = Is("1024"),
        /// Bytes of a domain and of an entry's key. A value may be longer: all of it is matched and counted, and this
        /// much of it is shown.
        key_bytes_max: Text = Is("1024"),
        /// Bytes of an HTTP body, of a gRPC message, of a whole RESP command.
        body_bytes_max: Text = Is("65536"),
    }

    /// Entries whose values are put in plain form before they are looked at. `::ffff:192.0.2.7` is `192.0.2.7`; an IPv6
    /// address is cut to a prefix, because one client owns all of it; a port is left out. An IPv6 address in a rule is
    /// cut alike, with a warning.
    RawAddresses in "addresses" {
        /// The keys of such entries.
        keys: List<String> = Is("[remote_address]"),
        /// Bits that are left of an IPv6 address.
        ipv6_prefix: Text = Is("64"),
    }

    /// Entries whose values are put in normal form before they are looked at, so that a rule for `/login` meets
    /// `/lo%67in`, `//login`, `/login/`, `/./login` and `/x/../login` ([what the normal form is](#paths-in-normal-form)).
    RawPaths in "paths" {
        /// The keys of such entries, whichever door they come by. Values of rules are put in normal form, too.
        keys: List<String> = Is("[]"),
        /// The keys of such entries where `/v1/forward` is asked; `[]` leaves all as they come. A rule has to be written
        /// in normal form; one that is not gets a warning.
        forward_keys: List<String> = Is("[path]"),
    }

    /// The log goes to standard output. A line that cannot be written, or that nobody takes, is lost and counted:
    /// nothing waits for the log.
    RawLog in "log" {
        /// From which level on.
        level: Text = Is("info"),
        /// `text` is for people, `json` is one object per line.
        format: Text = Is("text"),
    }

    /// A domain: what a file of envoyproxy/ratelimit holds, and our `match`. All of them together have at most 10000
    /// rules and 100000 descriptors.
    RawDomain in "rules[]" {
        /// Its name. A domain may be given once.
        domain: Text = Needed,
        /// `specific`: of the rules on its way a descriptor meets the one at its end. `path`: every one counts, and the
        /// most restrictive wins.
        matching as "match": Text = Is("specific"),
        /// A tree of at most 16 levels.
        descriptors: List<RawNode> = Nothing,
    }

    /// An entry that a check may have, and those that may follow it. With a `rate_limit` it is a rule; without one,
    /// what only a rule can have gets a warning.
    RawNode in "rules[].descriptors[]" {
        /// The entry's key.
        key: Text = Needed,
        /// The entry's value; a `*` in it is any text. Without a value, or with an empty one, it is any entry of that
        /// key, and each value has a bucket of its own.
        value: Text = Nothing,
        /// The limit.
        rate_limit: Field<RawRate> = Nothing,
        /// Entries that may follow.
        descriptors: List<RawNode> = Nothing,
        /// Counts and never denies; the metric says `shadow_deny`.
        shadow_mode: Text = Is("false"),
        /// Denies only if every quota rule of the check does.
        quota_mode: Text = Is("false"),
        /// Accepted, with a warning if true: a value never becomes a metric label.
        detailed_metric: Text = Is("false"),
        /// The same.
        value_to_metric: Text = Is("false"),
        /// All values that a `value` with a `*` matches share one bucket.
        share_threshold: Text = Is("false"),
        /// `local`: this pod alone. `hybrid`: decided here, told to the store. `strict`: what this pod does not deny
        /// from memory is taken in the store; the check waits at most `store.timeout`. Without a store all are `local`.
        consistency: Text = Like("what `defaults` says"),
        /// What holds while the store cannot be reached, and for a `strict` check that it did not answer ([what each
        /// grants](sync.md#without-the-store)). `deny` answers 503 with `Retry-After` (or `deny_status`, if the client
        /// gave one).
        on_store_error: Text = Like("what `defaults` says"),
        /// `contested`: a key is told only while a pod uses more than its even share of it. `always`: in any case. A
        /// `strict` rule's cells are in the store already.
        report: Text = Like("what `defaults` says"),
        /// What was denied is charged all the same: windowed algorithms count it in the window, the others book it as
        /// [debt](sync.md#debt), up to one burst. For [budgets that are charged after the fact](guides/token-budgets.md).
        count_rejected: Text = Is("false"),
    }

    /// So many per so long, in fields. In short it is one text: `20/minute`, `5/30s` (`s m h d`), `100/minute burst
    /// 20`.
    RawLimit in "rules[].descriptors[].rate_limit" {
        /// Cells in a window; 0 denies always. At most 1000000000 a second.
        requests_per_unit: Text = Needed,
        /// In any case, as `MINUTE`; a month has 30 days, a year 365.
        unit: Text = Needed,
        /// Units in a window, which lasts at most 100 years.
        unit_multiplier: Text = Is("1"),
        /// The whole of what can pass at once; 0 only if `requests_per_unit` is 0. Windowed algorithms have none.
        burst: Text = Like("`requests_per_unit`"),
        /// [How it counts](algorithms.md).
        algorithm: Text = Like("what `defaults` says"),
        /// What headers call it, and what `replaces` refers to.
        name: Text = Nothing,
        /// Matches and always allows: instead of `requests_per_unit`, `unit`, `unit_multiplier` and `burst`.
        unlimited: Text = Is("false"),
        /// Other rules, which do not count in a check that meets both.
        replaces: List<RawReplaced> = Nothing,
    }

    RawReplaced in "rules[].descriptors[].rate_limit.replaces[]" {
        /// The other rule's name.
        name: Text = Needed,
    }
}
