//! Every field of the file: its name, its type, its default and its description.
//!
//! The comments are Markdown, and so is the text in `Described`: `make docs` prints both into `docs/config.md`. The
//! values that a field accepts are not listed here; the code that checks them says so in its faults.

use super::raw::{Field, ListField, RawRate, TextField, fields};
use super::reference::FieldDefault::{Absent, Described, Required, Value};

fields! {
    /// A file with `domain` at its top level is also a rules file of envoyproxy/ratelimit.
    RawConfig in "" {
        /// The name of this pod.
        pod: Field<RawPod> = Absent,
        /// The addresses on which the doors listen.
        listen: Field<RawListen> =
            Value(r#"{ http: ["127.0.0.1:7600"], metrics: ["127.0.0.1:9464"], admin: ["127.0.0.1:7601"] }"#),
        /// The fleet's Redis ([sync.md](sync.md)). Without this section and without `REDIS_URL`, each pod limits alone.
        store: Field<RawStore> = Absent,
        /// When the pod reports to the store ([how to choose](sync.md#how-to-size-it)).
        sync: Field<RawSync> = Absent,
        /// The values for every rule that does not set its own.
        defaults: Field<RawDefaults> = Absent,
        /// The most that a pod holds in memory and accepts.
        bounds: Field<RawBounds> = Absent,
        /// Which entries hold IP addresses.
        addresses: Field<RawAddresses> = Absent,
        /// Which entries hold URL paths.
        paths: Field<RawPaths> = Absent,
        /// The headers of a check's answer. `draft-11`: `RateLimit` and `RateLimit-Policy`. `legacy`: `X-RateLimit-*`,
        /// with Reset in seconds from now. `legacy-epoch`: the same with Reset as a Unix time; give only one of these
        /// two. `[]`: no headers. With any of them, a denial also has `Retry-After`.
        headers: ListField<String> = Value("[draft-11, legacy]"),
        /// How `/admin/v1/top`, its page and `tidegate top` show denied keys. `plain`: as the values that clients sent.
        /// `hashed`: as a hash; the values are not stored. With `hashed`, set `store.hash_key_file`, otherwise anybody
        /// can find a value by guessing.
        keys: TextField = Value("plain"),
        /// What the daemon logs.
        log: Field<RawLog> = Absent,
        /// The longest that an orderly stop may take.
        drain: TextField = Value("10s"),
        /// Domains: each holds what a rules file of envoyproxy/ratelimit holds.
        rules: ListField<RawDomain> = Absent,
        /// A folder, relative to this file's folder. As in envoyproxy/ratelimit, every file in it and in its subfolders
        /// is one more domain, whatever the file's name. Three kinds are skipped with a warning: names that begin with
        /// a dot, names that end in `~`, and links to folders. At most 1000 files and 100 folders.
        rules_dir: TextField = Absent,
        /// As in `rules[]`. With it, the file itself is a domain.
        domain: TextField = Absent,
        /// As in `rules[]`.
        matching as "match": TextField = Absent,
        /// As in `rules[]`.
        descriptors: ListField<RawNode> = Absent,
    }

    RawPod in "pod" {
        /// The pod's name in the admin API and in the log. An empty name counts as none.
        id: TextField = Described("`POD_NAME`, or `HOSTNAME`, or the content of `/etc/hostname`, or `pod`"),
    }

    /// A `listen` section turns off every door that it does not name. Two doors cannot share an address; port 0 takes
    /// any free port. The relative path of a socket starts at the working directory. An address that other hosts can
    /// reach gets a warning if it takes checks without a password.
    RawListen in "listen" {
        /// Checks over HTTP.
        http: ListField<String> = Value("[]"),
        /// Envoy's rate limit service ([guides/envoy.md](guides/envoy.md)).
        grpc: ListField<String> = Value("[]"),
        /// The Redis protocol: `CL.THROTTLE`, `TG.CHECK` ([resp.md](resp.md)).
        resp: ListField<String> = Value("[]"),
        /// `/metrics`, `/livez`, `/readyz`: read-only, safe to expose to the pod network.
        metrics: ListField<String> = Value("[]"),
        /// The admin API, which can change state ([admin.md](admin.md)). Beyond loopback it needs a `token_file`.
        admin: ListField<String> = Value("[]"),
        /// The permissions of Unix sockets.
        unix_mode: TextField = Value(r#""0660""#),
        /// A file with the bearer token that every request to `admin` must send, except the request for its page.
        token_file: TextField = Absent,
        /// A file with the password that clients of `resp` must send: `AUTH PASSWORD`, or `HELLO 3 AUTH default
        /// PASSWORD`.
        resp_password_file: TextField = Absent,
    }

    RawStore in "store" {
        /// `redis[s]://[user[:password]@]host[:port],...[/database]`, or `unix:///path[?db=N&user=U&pass=P]`. `rediss`
        /// is TLS. Sentinels and clusters take a list of hosts; `single` uses the first. The default port is 6379, for
        /// sentinels 26379. The default database is 0, the only one that `cluster` allows. Percent-encode user and
        /// password.
        url: TextField = Required,
        /// The kind of Redis at that address. Sentinels and clusters need hosts, not a socket.
        topology: TextField = Value("single"),
        /// The name of the master that the sentinels know. Required with `sentinel`, and allowed only there.
        master: TextField = Absent,
        /// A file with the password. It overrides a password in `url`; the user stays in `url`.
        password_file: TextField = Absent,
        /// Certificates for `rediss://`, as PEM files.
        tls: Field<RawTls> = Absent,
        /// The timeout of every call, connecting included. A strict check waits no longer than this.
        timeout: TextField = Value("250ms"),
        /// The prefix of every key in Redis. Fleets that share a Redis need different prefixes.
        key_prefix: TextField = Value("tidegate"),
        /// A file with the secret that keys are hashed with. Every pod of the fleet needs the same bytes. Without it,
        /// the secret is derived from `key_prefix`, and whoever knows that prefix could search for values that share a
        /// bucket. Set it if strangers choose the values of your keys.
        hash_key_file: TextField = Absent,
    }

    RawTls in "store.tls" {
        /// The certificate authorities to trust, instead of the system's list.
        ca_file: TextField = Absent,
        /// This pod's certificate, for servers that require one. Give it together with `key_file`.
        cert_file: TextField = Absent,
        /// The private key of `cert_file`.
        key_file: TextField = Absent,
    }

    RawSync in "sync" {
        /// The longest that a key with unreported cells waits for its report.
        interval: TextField = Value("1s"),
        /// The part of a bucket that may be unreported before the pod reports early.
        accuracy: TextField = Value("0.1"),
    }

    /// Except for `algorithm`, these also hold for [caller-supplied limits](sync.md#limits-that-callers-carry).
    RawDefaults in "defaults" {
        /// As in `rate_limit`.
        algorithm: TextField = Value("gcra"),
        /// As beside `rate_limit`.
        consistency: TextField = Value("hybrid"),
        /// As beside `rate_limit`.
        on_store_error: TextField = Value("local_share"),
        /// As beside `rate_limit`.
        report: TextField = Value("contested"),
    }

    RawBounds in "bounds" {
        /// The most keys in each of three tables: level rules, windowed rules, caller-supplied limits.
        keys_max: TextField = Value("1000000"),
        /// The most connections of all doors for checks together. The pod answers one more with a refusal (HTTP: 503)
        /// and closes it. Where the system allows too few open files, the pod lowers this bound and logs a warning.
        connections_max: TextField = Value("1024"),
        /// The most bytes of a domain and of an entry's key. A value may be longer: all of it is matched and counted,
        /// and only this much of it is shown.
        key_bytes_max: TextField = Value("1024"),
        /// The most bytes of an HTTP body, of a gRPC message and of a whole RESP command.
        body_bytes_max: TextField = Value("65536"),
    }

    /// Entries whose values tidegate brings into one form before it matches them. `::ffff:192.0.2.7` becomes
    /// `192.0.2.7`. An IPv6 address is cut to a prefix, because one client owns the whole prefix. A port is removed. An
    /// IPv6 address in a rule is cut in the same way, with a warning.
    RawAddresses in "addresses" {
        /// The keys of these entries.
        keys: ListField<String> = Value("[remote_address]"),
        /// The number of bits that remain of an IPv6 address.
        ipv6_prefix: TextField = Value("64"),
    }

    /// Entries whose values tidegate brings into normal form before it matches them, so that a rule for `/login` matches
    /// `/lo%67in`, `//login`, `/login/`, `/./login` and `/x/../login` ([what the normal form is](#paths-in-normal-form)).
    RawPaths in "paths" {
        /// The keys of these entries, at every door. Values in rules are brought into normal form, too.
        keys: ListField<String> = Value("[]"),
        /// The keys of these entries in requests to `/v1/forward`; `[]` leaves every value as it comes. A rule must be
        /// written in normal form; any other gets a warning.
        forward_keys: ListField<String> = Value("[path]"),
    }

    /// The log goes to standard output. Nothing waits for the log: a line that cannot be written, or that nobody reads,
    /// is lost and counted.
    RawLog in "log" {
        /// The lowest level that is logged.
        level: TextField = Value("info"),
        /// `text` is for people, `json` is one object per line.
        format: TextField = Value("text"),
    }

    /// A domain: the content of a rules file of envoyproxy/ratelimit, and our `match`. All domains together may have at
    /// most 10000 rules and 100000 descriptors.
    RawDomain in "rules[]" {
        /// Its name. Each domain may be given once.
        domain: TextField = Required,
        /// `specific`: of the rules along its path, a descriptor uses only the last one. `path`: all of them count, and
        /// the most restrictive one decides.
        matching as "match": TextField = Value("specific"),
        /// A tree of at most 16 levels.
        descriptors: ListField<RawNode> = Absent,
    }

    /// An entry that a check may have, and the entries that may follow it. With a `rate_limit` it is a rule. Without
    /// one, the fields that only a rule can have get a warning.
    RawNode in "rules[].descriptors[]" {
        /// The entry's key.
        key: TextField = Required,
        /// The entry's value; a `*` in it matches any text. An absent or empty value matches every entry with this key,
        /// and each value has its own bucket.
        value: TextField = Absent,
        /// The limit.
        rate_limit: Field<RawRate> = Absent,
        /// Entries that may follow.
        descriptors: ListField<RawNode> = Absent,
        /// The rule counts and never denies; the metric says `shadow_deny`.
        shadow_mode: TextField = Value("false"),
        /// The rule denies only if every quota rule of the check denies.
        quota_mode: TextField = Value("false"),
        /// Accepted, with a warning if true: a value never becomes a metric label.
        detailed_metric: TextField = Value("false"),
        /// The same.
        value_to_metric: TextField = Value("false"),
        /// All values that a `value` with a `*` matches share one bucket.
        share_threshold: TextField = Value("false"),
        /// `local`: this pod counts alone. `hybrid`: this pod decides and reports to the store. `strict`: the store
        /// decides each check that this pod does not deny from memory; the check waits at most `store.timeout`. Without
        /// a store, all rules are `local`.
        consistency: TextField = Described("the value in `defaults`"),
        /// What the rule does while the store is unreachable, and for a `strict` check that the store did not answer
        /// ([what each grants](sync.md#without-the-store)). `deny` answers 503 with `Retry-After` (or `deny_status`, if
        /// the client gave one).
        on_store_error: TextField = Described("the value in `defaults`"),
        /// `contested`: the pod reports a key only while some pod uses more than its even share of it. `always`: the
        /// pod reports every key. The cells of a `strict` rule are in the store already.
        report: TextField = Described("the value in `defaults`"),
        /// Denied checks are charged too: windowed algorithms count them in the window, the others book them as
        /// [debt](sync.md#debt), up to one burst. Use it for [budgets that are charged after the
        /// fact](guides/token-budgets.md).
        count_rejected: TextField = Value("false"),
    }

    /// A number of cells per window, as fields. The short form is one text: `20/minute`, `5/30s` (`s m h d`),
    /// `100/minute burst 20`.
    RawLimit in "rules[].descriptors[].rate_limit" {
        /// Cells per window; 0 denies every check. At most 1000000000 a second.
        requests_per_unit: TextField = Required,
        /// In upper or lower case, such as `MINUTE`. A month has 30 days, a year 365.
        unit: TextField = Required,
        /// Units per window. A window lasts at most 100 years.
        unit_multiplier: TextField = Value("1"),
        /// The most cells that can pass at once; 0 only if `requests_per_unit` is 0. Windowed algorithms have no burst.
        burst: TextField = Described("`requests_per_unit`"),
        /// [How the limit counts](algorithms.md).
        algorithm: TextField = Described("the value in `defaults`"),
        /// The rule's name in headers; `replaces` refers to it.
        name: TextField = Absent,
        /// The rule matches and always allows. It replaces `requests_per_unit`, `unit`, `unit_multiplier` and `burst`.
        unlimited: TextField = Value("false"),
        /// Other rules. They do not count in a check that matches both.
        replaces: ListField<RawReplaced> = Absent,
    }

    RawReplaced in "rules[].descriptors[].rate_limit.replaces[]" {
        /// The name of the other rule.
        name: TextField = Required,
    }
}
