//! Tests of valid configuration files and of the errors for others.

use super::*;

fn fault(text: &str) -> String {
    ProxyConfig::parse("f.toml", text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_is_the_defaults() {
    let config = ProxyConfig::parse("f.toml", "").unwrap();
    assert_eq!(config, ProxyConfig::default());
    assert_eq!(config.listen, ["tcp://127.0.0.1:5640".parse().unwrap()]);
    assert_eq!((config.squash, config.squash_uid), (Squash::Root, 65534));
    assert_eq!(config.msize_max, Bytes::mib(4));
    assert_eq!(config.promote_after, Nanos::from_micros(200));
    assert!(config.schedule);
}

#[test]
fn every_kind_of_value_is_read() {
    let config = ProxyConfig::parse(
        "f.toml",
        r#"
        listen = ["tcp://0.0.0.0:564", "unix:///run/s.sock"]
        api = "off"
        rules = "r.toml"
        controller = "http://[::1]:5650"
        controller_unreachable = "keep"
        proxy_name = "oss-1.site"
        squash = "all"
        groups = "client"
        trusted = ["10.0.0.0/8"]
        allow = ["10.0.0.0/8", "::1"]
        threads = 3
        bytes_in_flight_max = "64MiB"
        drain_timeout = "1min"
        [[export]]
        name = "scratch"
        dir = "/scratch"
        readonly = true
        target = "lustre"
        [[target]]
        name = "lustre"
        slots_max = 128
        cost = "bytes"
        write_mode = "paced"
        dirty_budget = "32MiB"
        costs = "costs.toml"
        latency_target = "5ms"
        recalibrate = true
        capacity_read = "2GB/s"
        capacity_write = "1GB/s"
        capacity_metadata = "50kops/s"
        unseen = "20%"
        "#,
    );
    let expected = ProxyConfig {
        listen: vec!["tcp://0.0.0.0:564".parse().unwrap(), "unix:///run/s.sock".parse().unwrap()],
        api: ApiSocket::Off,
        rules: Some("r.toml".into()),
        controller: Some("http://[::1]:5650".parse().unwrap()),
        controller_unreachable: ControllerUnreachable::Keep,
        proxy_name: Some("oss-1.site".into()),
        squash: Squash::All,
        groups: GroupsSource::Client,
        trusted: vec!["10.0.0.0/8".parse().unwrap()],
        allow: vec!["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
        threads: 3,
        bytes_in_flight_max: Bytes::mib(64),
        drain_timeout: Nanos::from_secs(60),
        export: vec![ExportConfig {
            name: "scratch".into(),
            dir: "/scratch".into(),
            leases: LeasePolicy::None,
            readonly: true,
            target: Some("lustre".into()),
        }],
        target: vec![TargetConfig {
            name: "lustre".into(),
            slots_max: Some(128),
            cost: ConfiguredCosts::Bytes,
            write_mode: Some(WriteMode::Paced),
            dirty_budget: Bytes::mib(32),
            costs: Some("costs.toml".into()),
            latency_target: Some(Nanos::from_millis(5)),
            recalibrate: true,
            capacity_read: Some("2GB/s".parse().unwrap()),
            capacity_write: Some("1GB/s".parse().unwrap()),
            capacity_metadata: Some("50kops/s".parse().unwrap()),
            unseen: "20%".parse().unwrap(),
        }],
        ..ProxyConfig::default()
    };
    assert_eq!(config.unwrap(), expected);
}

#[test]
fn a_misspelt_key_is_an_error_at_its_line() {
    let error = fault("\nthreads = 1\nthread_max = 4\n");
    let first = error.lines().next().unwrap();
    assert!(first.starts_with("f.toml:3:1: unknown field \"thread_max\", expected one of"));
    assert_eq!(
        error.lines().skip(1).collect::<Vec<_>>(),
        ["  3 | thread_max = 4", "    | ^^^^^^^^^^"]
    );
}

#[test]
fn a_wrong_value_is_marked() {
    assert_eq!(
        fault("threads = 1\nmsize_max = \"64\"\n"),
        "f.toml:2:13: \"64\" is not an amount of data such as 64KiB, 4MiB or 1GB\n  \
           2 | msize_max = \"64\"\n    \
             |             ^^^^"
    );
    assert_eq!(
        fault("listen = [\"tcp://[::1]:1\", \"tcp://host:1\"]"),
        "f.toml:1:10: \"tcp://host:1\" is not an address such as tcp://127.0.0.1:5640 or \
         unix:///run/sluice.sock\n  \
           1 | listen = [\"tcp://[::1]:1\", \"tcp://host:1\"]\n    \
             |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
    );
    assert_eq!(
        fault("[[target]]\nname = \"a\"\ncost = \"free\"\n"),
        "f.toml:3:8: \"free\" is not one of calibrated, bytes\n  \
           3 | cost = \"free\"\n    \
             |        ^^^^^^"
    );
}

#[test]
fn broken_toml_has_a_place() {
    let error = fault("a = = 1");
    assert!(error.starts_with("f.toml:1:"), "{error}");
    assert!(error.contains("\n  1 | a = = 1\n"), "{error}");
}

#[test]
fn a_key_without_default_must_be_given() {
    assert_eq!(
        fault("threads = 1\n[[export]]\nname = \"x\"\n"),
        "f.toml:2:1: missing field \"dir\"\n  2 | [[export]]\n    | ^^^^^^^^^^"
    );
}

#[test]
fn bounds_that_the_type_does_not_know_are_marked_too() {
    let cases = [
        ("msize_max = \"8MiB\"", "f.toml:1:13: 8MiB is not between 4KiB and 4MiB"),
        ("threads = 300", "f.toml:1:11: 300 is not between 0 and 256"),
        ("tags_max = 65536", "f.toml:1:12: 65536 is not between 1 and 65535"),
        ("squash_uid = 0", "f.toml:1:14: 0 is not an unprivileged id such as 65534"),
        (
            "proxy_name = \"-a\"",
            "f.toml:1:14: \"-a\" is not 1 to 63 letters, digits, '_', '-' and '.', beginning with \
             a letter or digit",
        ),
        (
            "bytes_in_flight_max = \"1MiB\"",
            "f.toml:1:23: 1MiB is less than one message of msize_max = 4MiB",
        ),
        ("bytes_before_attach = \"1B\"", "f.toml:1:23: 1B is less than 1KiB"),
        (
            "[[export]]\nname = \"a/b\"\ndir = \"/\"",
            "f.toml:2:8: \"a/b\" is not 1 to 63 letters, digits, '_', '-' and '.'",
        ),
        (
            "[[export]]\nname = \"a\"\ndir = \"/\"\ntarget = \"t\"",
            "f.toml:4:10: \"t\" is not the name of a [[target]]",
        ),
        (
            "[[target]]\nname = \"t\"\nslots_max = 0",
            "f.toml:3:13: the number of slots is not between 1 and 65536",
        ),
        (
            "[[target]]\nname = \"t\"\n[[target]]\nname = \"t\"",
            "f.toml:4:8: \"t\" names two targets; rename one",
        ),
        (
            "[[export]]\nname = \"a\"\ndir = \"/\"\n[[export]]\nname = \"a\"\ndir = \"/b\"",
            "f.toml:5:8: \"a\" names two exports; rename one",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(fault(text).lines().next().unwrap(), expected);
    }
}

#[test]
fn paths_count_from_the_files_directory() {
    let dir = std::env::temp_dir().join(format!("sluice-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("sluice.toml");
    let text = "rules = \"r.toml\"\ntrace = \"/t\"\n[[export]]\nname = \"x\"\ndir = \"data\"\n";
    std::fs::write(&file, text).unwrap();
    let config = ProxyConfig::load(&file).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(config.rules, Some(dir.join("r.toml")));
    assert_eq!(config.trace, Some("/t".into()));
    assert_eq!(config.export[0].dir, dir.join("data"));
}

#[test]
fn a_missing_file_is_named() {
    let error = ProxyConfig::load(Path::new("/nonexistent.toml")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nonexistent.toml");
}

#[test]
fn the_allow_list_lets_everybody_in_until_it_is_set() {
    let config = ProxyConfig::default();
    assert!(config.allows("192.0.2.7".parse().unwrap()));
    assert!(config.allows("2001:db8::1".parse().unwrap()));
    assert!(!config.trusts("127.0.0.1".parse().unwrap()));
    let config = ProxyConfig::parse("f", "allow = [\"127.0.0.0/8\"]").unwrap();
    assert!(config.allows("::ffff:127.0.0.1".parse().unwrap()));
    assert!(!config.allows("192.0.2.7".parse().unwrap()));
}
