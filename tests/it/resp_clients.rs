//! The Redis door with the clients that people have: redis-cli, redis-py, ioredis, and the `redis` crate.

use std::path::Path;
use std::process::Command;

use redis::{ConnectionLike, RedisResult, Value};
use tidegate_testing::{Endpoint, Sidecar, SidecarSetup};

const RULES: &str = "- { domain: api, descriptors: [{ key: client, rate_limit: 5/hour }] }";
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools");

fn start() -> (Sidecar, Vec<Endpoint>) {
    let setup = SidecarSetup::rules(RULES);
    setup.folder.write("password", "open sesame\n");
    let sidecar = setup
        .listen_also(r#"resp: ["127.0.0.1:0", "unix:r.sock"], resp_password_file: password"#)
        .start();
    let doors = sidecar.doors("resp");
    (sidecar, doors)
}

fn port(doors: &[Endpoint]) -> String {
    match &doors[0] {
        Endpoint::Tcp(address) => address.port().to_string(),
        Endpoint::Unix(path) => panic!("{} is no port", path.display()),
    }
}

/// Runs a program of a folder of tools and gives what it printed.
fn run(mut command: Command, needs: &str) -> String {
    let needed = Path::new(TOOLS).join(needs);
    assert!(
        needed.exists(),
        "no {} here: run `make tools`",
        needed.display()
    );
    let output = command.output().expect("it runs: `make tools` brings it");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(error, "");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redis_cli_connects_and_asks() {
    let (_sidecar, doors) = start();
    for door in &doors {
        for (protocol, key) in [("-2", "a"), ("-3", "b")] {
            let key = format!("{key}-{}", door.kind());
            let cli = |words: &[&str]| {
                let mut command = Command::new("redis-cli");
                match door {
                    Endpoint::Tcp(address) => command.args(["-p", &address.port().to_string()]),
                    Endpoint::Unix(path) => command.args(["-s", &path.display().to_string()]),
                };
                command.args([protocol, "--no-auth-warning", "-a", "open sesame"]);
                run(
                    {
                        command.args(words);
                        command
                    },
                    "",
                )
            };
            assert_eq!(cli(&["PING"]), "PONG\n");
            assert_eq!(
                cli(&["CL.THROTTLE", &key, "1", "1", "3600"]),
                "0\n2\n1\n-1\n3600\n"
            );
            assert_eq!(
                cli(&["cl.throttle", &key, "1", "1", "3600"]),
                "0\n2\n0\n-1\n7199\n"
            );
            let denied = cli(&["THROTTLE", &key, "1", "1", "3600"]);
            assert!(denied.starts_with("1\n2\n0\n35"), "{denied}");
            assert_eq!(
                cli(&["TG.CHECK", "api", "client", &key, "COST", "2"]),
                "1\n5\n3\n0\n1440000\napi/client\n"
            );
            assert!(
                cli(&["NOPE", "x"])
                    .starts_with("ERR unknown command 'NOPE', with args beginning with: 'x' ")
            );
        }
    }
}

/// Its interactive mode asks for the commands' documentation first.
#[test]
fn redis_cli_reads_commands_from_its_input() {
    let (sidecar, doors) = start();
    sidecar.folder().write(
        "commands",
        "PING\nCL.THROTTLE piped 0 1 3600\nECHO \"a b\"\n",
    );
    let line = format!(
        "REDISCLI_AUTH='open sesame' redis-cli -p {} <commands",
        port(&doors)
    );
    let ran = sidecar.folder().shell(&line);
    assert_eq!(
        ran.stdout, "PONG\n0\n1\n0\n-1\n3600\na b\n",
        "{}",
        ran.stderr
    );
}

#[test]
fn redis_py_connects_and_asks() {
    const SCRIPT: &str = r#"
import redis, sys
port = int(sys.argv[1])
for protocol in (2, 3):
    client = redis.Redis(port=port, password="open sesame", protocol=protocol, client_name="py", decode_responses=True)
    assert client.ping() is True
    assert client.client_getname() == "py"
    assert client.echo("x") == "x"
    key = f"py-{protocol}"
    assert client.execute_command("CL.THROTTLE", key, 1, 1, 3600) == [0, 2, 1, -1, 3600]
    with client.pipeline(transaction=False) as pipe:
        for _ in range(1000):
            pipe.execute_command("TG.CHECK", "api", "client", key)
        answers = pipe.execute()
    assert sum(answer[0] for answer in answers) == 5, answers[:7]
    assert answers[0][5] == "api/client"
    try:
        client.execute_command("CL.THROTTLE", key, -1, 1, 1)
        raise SystemExit("not refused")
    except redis.ResponseError as error:
        assert str(error) == "max_burst: must be at least 0, is -1", error
try:
    redis.Redis(port=port, password="wrong").ping()
    raise SystemExit("let in")
except redis.AuthenticationError:
    pass
print("done")
"#;
    let (_sidecar, doors) = start();
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", format!("{TOOLS}/redis-py"));
    command.args(["-c", SCRIPT, &port(&doors)]);
    assert_eq!(run(command, "redis-py"), "done\n");
}

#[test]
fn ioredis_connects_and_asks() {
    const SCRIPT: &str = r#"
const Redis = require("ioredis");
const assert = require("assert");
(async () => {
  for (const where of [{ port: Number(process.argv[1]) }, { path: process.argv[2] }]) {
    const client = new Redis({ ...where, password: "open sesame", connectionName: "io" });
    assert.equal(await client.ping(), "PONG");
    assert.equal(await client.client("GETNAME"), "io");
    const key = "io-" + Object.keys(where)[0];
    assert.deepEqual(await client.call("CL.THROTTLE", key, 1, 1, 3600), [0, 2, 1, -1, 3600]);
    const answers = await Promise.all([...Array(1000)].map(() => client.call("TG.CHECK", "api", "client", key)));
    assert.equal(answers.reduce((sum, answer) => sum + answer[0], 0), 5);
    await assert.rejects(client.call("CL.THROTTLE", key, 1, 0, 1), /count: must be at least 1, is 0/);
    assert.equal(await client.quit(), "OK");
  }
  console.log("done");
})().catch((error) => { console.error(error); process.exit(1); });
"#;
    let (sidecar, doors) = start();
    let mut command = Command::new("node");
    command.env("NODE_PATH", format!("{TOOLS}/ioredis/node_modules"));
    command.args(["-e", SCRIPT, &port(&doors)]);
    command.arg(sidecar.folder().path("r.sock"));
    assert_eq!(run(command, "ioredis"), "done\n");
}

#[test]
fn the_redis_crate_connects_and_asks() {
    let (_sidecar, doors) = start();
    let password = "open%20sesame";
    for (nth, door) in doors.iter().enumerate() {
        for protocol in ["resp2", "resp3"] {
            let url = match door {
                Endpoint::Tcp(address) => {
                    format!("redis://:{password}@{address}/?protocol={protocol}")
                }
                Endpoint::Unix(path) => format!(
                    "unix://{}?protocol={protocol}&pass={password}",
                    path.display()
                ),
            };
            let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
            assert!(connection.check_connection());
            let key = format!("rs-{protocol}-{nth}");
            let mut throttle = redis::cmd("CL.THROTTLE");
            throttle.arg(&key).arg(1).arg(1).arg(3_600);
            let five: Vec<i64> = throttle.query(&mut connection).unwrap();
            assert_eq!(five, [0, 2, 1, -1, 3_600]);
            let mut pipe = redis::pipe();
            for _ in 0..1_000 {
                pipe.cmd("TG.CHECK").arg("api").arg("client").arg(&key);
            }
            type Six = (i64, i64, i64, i64, i64, String);
            let answers: Vec<Six> = pipe.query(&mut connection).unwrap();
            assert_eq!(answers.iter().map(|answer| answer.0).sum::<i64>(), 5);
            let unmatched: RedisResult<Vec<Value>> = redis::cmd("TG.CHECK")
                .arg(&["other", "client", &key])
                .query(&mut connection);
            let [.., rule] = &unmatched.unwrap()[..] else {
                panic!("an array");
            };
            assert_eq!(*rule, Value::Nil);
        }
    }
}
