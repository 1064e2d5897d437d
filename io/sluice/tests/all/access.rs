//! Who may do what at a controller, with real processes: tokens, roles, and what is written down.
//!
//! ```text
//!   sluice token ─► DATA, or a running controller      every call × every role ─► 401, 403, or not
//!   sluice controller --listen https://0.0.0.0 ─► refused, with the commands that make it right
//! ```

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use api::{AuditLines, ErrorCode, NewToken, ProxyReport, Role};
use http::Credentials;

use crate::common::{Controller, until};
use crate::controlled::{LIMIT, limited};
use crate::entrusted::{
    ask, client, first_token, secret, showing, sluice, sluice_with, status, text, token,
};
use model::Service;
use testkit::{TestFolder, account_subject};
use usage::{UsageLine, UsageReport};

/// The rows of docs/ACCESS.md: call, and whether each role may, in their order.
fn rows() -> Vec<(String, [bool; Role::ALL.len()])> {
    let document = sluice(&["docs", "access"]).unwrap();
    let table = document.lines().filter_map(|line| line.strip_prefix("| `"));
    let calls = table.filter_map(|line| line.split_once("` |"));
    let known = ["GET /", "PUT /", "POST /", "DELETE /"];
    let calls = calls.filter(|(call, _)| known.iter().any(|known| call.starts_with(known)));
    let rows: Vec<_> = calls
        .map(|(call, cells)| {
            let cells: Vec<_> = cells.split('|').map(|cell| cell.trim() == "yes").collect();
            let call = call.replace("{name}", "nobody").replace("{job}", "run.nobody");
            (call, cells[..Role::ALL.len()].try_into().unwrap())
        })
        .collect();
    assert!(rows.len() >= 15, "{rows:?}");
    rows
}

#[test]
fn each_role_may_do_what_the_table_says_and_what_is_refused_changes_nothing() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let admin = client(&controller.url, &showing(&root));
    let tokens = Role::ALL.map(|role| token(&admin, role.name(), role));
    admin.set_rules(&limited(LIMIT)).unwrap();
    let state = || {
        let mut proxies = admin.proxies().unwrap();
        proxies.t_ns = 0;
        (admin.rules().unwrap(), admin.tokens().unwrap(), proxies)
    };
    let before = state();
    let rows = rows();
    // First all that must fail, then all that may do something.
    for wanted in [false, true] {
        for (call, may) in &rows {
            for (at, role) in Role::ALL.into_iter().enumerate().filter(|(at, _)| may[*at] == wanted)
            {
                let head = format!("authorization: Bearer {}\r\n", tokens[at]);
                let answer = ask(&controller.url, call, &head, "");
                let refused = [401, 403].contains(&status(&answer));
                // A role that may see less than was asked for is told so in the same way.
                let part = [
                    (Role::User, "GET /v1/usage"),
                    // A job sees itself.
                    (Role::Job, "GET /v1/jobs/run.nobody"),
                ];
                let part = part.contains(&(role, call.as_str()));
                assert_eq!(refused, !wanted || part, "{call} by {role}: {answer}");
                if !wanted {
                    assert_eq!(status(&answer), 403, "{call} by {role}: {answer}");
                    let name = if role == Role::Job { "job job" } else { role.name() };
                    let said = format!("and {name} has role {role}");
                    assert!(answer.contains("needs role ") && answer.contains(&said), "{answer}");
                }
            }
        }
        if !wanted {
            assert_eq!(state(), before);
        }
    }
    for (call, _) in &rows {
        for head in ["", "authorization: Bearer slc_wrong\r\n", "authorization: Basic eDp5\r\n"] {
            let answer = ask(&controller.url, call, head, "");
            assert_eq!(status(&answer), 401, "{call} {head}: {answer}");
            assert!(answer.to_lowercase().contains("\r\nwww-authenticate: bearer\r\n"), "{answer}");
        }
    }
    let head = format!("authorization: Bearer {}\r\n", tokens[0]);
    for (call, expected) in
        [("GET /v2/none", 404), ("PATCH /v1/rules", 405), ("POST /v1/rules", 405)]
    {
        assert_eq!(status(&ask(&controller.url, call, &head, "")), expected, "{call}");
        assert_eq!(status(&ask(&controller.url, call, "", "")), 401, "{call}");
    }
    assert_eq!(status(&ask(&controller.url, "HEAD /v1/tokens", &head, "")), 403);
}

#[test]
fn without_tokens_loopback_is_everybody_s_and_with_the_first_nobody_s_without() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let url = controller.url.as_str();
    let anybody = controller.client();
    anybody.set_rules(&limited(LIMIT)).unwrap();
    let make = |name: &str, role: &str| {
        sluice(&["token", "create", name, "--role", role, "--controller", url])
    };
    let error = make("ann", "operate").unwrap_err();
    assert!(error.contains("the first token must have role admin"), "{error}");
    let root = make("root", "admin").unwrap();
    let error = anybody.rules().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unauthenticated, "{error}");
    let error = make("ann", "operate").unwrap_err();
    assert!(error.contains("requires a token") && error.contains("--token-file"), "{error}");

    // With it everything goes on; revoking the last one opens this machine's door again.
    let file = secret(data.path().join("root.token"), &root);
    let with = |args: &[&str]| {
        let flags = ["--controller", url, "--token-file", text(&file)];
        sluice(&[args, &flags[..]].concat())
    };
    with(&["token", "create", "ann", "--role", "operate", "--expires", "1d"]).unwrap();
    let list = with(&["token", "list"]).unwrap();
    assert!(list.contains("ann") && list.contains("operate") && list.contains("in 2"), "{list}");
    assert!(!list.contains("slc_"), "{list}");
    let error = with(&["token", "revoke", "root"]).unwrap_err();
    assert!(error.contains("the last token of role admin"), "{error}");
    with(&["token", "revoke", "ann"]).unwrap();
    with(&["token", "revoke", "root"]).unwrap();
    assert_eq!(anybody.rules().unwrap().text, limited(LIMIT));
}

#[test]
fn a_token_that_was_revoked_or_expired_is_of_no_use_at_once() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let mut controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let admin = client(&controller.url, &showing(&root));
    // The connection is kept: what counts is the call.
    let reader = client(&controller.url, &showing(&token(&admin, "ann", Role::Read)))
        .with_connection_reuse();
    reader.rules().unwrap();
    admin.revoke_token("ann").unwrap();
    let error = reader.rules().unwrap_err();
    assert_eq!((error.code(), error.at()), (ErrorCode::Unauthenticated, Some("Authorization")));

    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let mut short = NewToken { name: "bob".into(), role: Role::Read, user: None, expires_s: None };
    let mut made = None;
    until("one is made before it has expired", || {
        short.expires_s = Some(now() + 2);
        made = admin.make_token(&short).ok();
        made.is_some()
    });
    let reader = client(&controller.url, &showing(&made.unwrap().token));
    until("it expires", || {
        reader.rules().is_err_and(|error| error.code() == ErrorCode::Unauthenticated)
    });
    let late = NewToken { name: "eve".into(), ..short };
    let error = admin.make_token(&late).unwrap_err();
    assert_eq!((error.code(), error.at()), (ErrorCode::InvalidArgument, Some("expires_s")));

    // Another process finds the same on record.
    controller.kill();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let names: Vec<_> = client(&controller.url, &showing(&root)).tokens().unwrap().tokens;
    let names: Vec<_> = names.iter().map(|token| token.name.as_str()).collect();
    assert_eq!(names, ["bob", "root"]);
}

#[test]
fn a_user_sees_its_own_usage_and_nobody_else_s() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let admin = client(&controller.url, &showing(&root));
    let proxy = client(&controller.url, &showing(&token(&admin, "proxies", Role::Proxy)));
    let line = |id: u64, uid: u32| UsageLine {
        id,
        subject: account_subject(&format!("dd.{id}"), uid).into(),
        service: Service { read_bytes: 1_000 * id, cost_ns: id, ..Service::default() },
    };
    let lines = vec![line(1, 1001), line(2, 1002)];
    let total = Service { read_bytes: 3_000, cost_ns: 3, ..Service::default() };
    let usage = Some(UsageReport { sequence: 1, total, lines, ..UsageReport::default() });
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let epoch = since.as_nanos() as u64;
    proxy.report("a", &ProxyReport { epoch, usage, ..ProxyReport::default() }).unwrap();
    until("it is counted", || admin.usage("by=user").unwrap().rows.len() == 2);

    let user = client(&controller.url, &showing(&token(&admin, "ann", Role::User)));
    for query in ["by=user", "by=user&user=1001"] {
        let rows = user.usage(query).unwrap().rows;
        let found: Vec<_> = rows.iter().map(|row| (&*row.name, row.service.read_bytes)).collect();
        assert_eq!(found, [("1001", 1_000)]);
    }
    for query in ["by=user&user=1002", "by=job", "by=group", "by=proxy", ""] {
        let error = user.usage(query).unwrap_err();
        assert_eq!(error.code(), ErrorCode::PermissionDenied, "{query}: {error}");
        assert_eq!(error.at(), Some("user"), "{query}: {error}");
    }
    assert_eq!(admin.usage("by=user&user=1002").unwrap().rows[0].service.read_bytes, 2_000);
    let error = admin.usage("by=job&user=1002").unwrap_err();
    assert_eq!((error.code(), error.at()), (ErrorCode::InvalidArgument, Some("user")));
}

#[test]
fn beyond_this_machine_it_refuses_to_start_and_the_commands_that_it_names_make_it_start() {
    let data = TestFolder::new();
    let dir = text(data.path());
    let refused = |listen: &str| {
        let error = sluice(&["controller", "--data", dir, "--listen", listen]).unwrap_err();
        assert!(error.contains(listen), "{error}");
        error
    };
    assert!(refused("https://127.0.0.1:0").contains("requires a certificate"));
    let error = refused("http://0.0.0.0:0");
    assert!(error.contains("other machines"), "{error}");
    let lines: Vec<_> = error.lines().filter_map(|line| line.strip_prefix("  sluice ")).collect();
    let (start, make) = lines.split_last().unwrap();
    let mut token = String::new();
    for line in make {
        token = sluice(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let flags: Vec<_> = start.split(' ').skip(1).collect();
    let at = flags.iter().position(|flag| *flag == "--listen").unwrap();
    assert_eq!(flags[at + 1], "https://0.0.0.0:0");
    let rest = [&flags[..at], &flags[at + 2..]].concat();
    let rest: Vec<_> = rest.into_iter().filter(|flag| !["--data", dir].contains(flag)).collect();
    let controller = Controller::with(data.path(), flags[at + 1], &rest, "ready");
    let url = controller.url.replace("0.0.0.0", "127.0.0.1");
    let ca = Some(data.path().join("tls/ca.pem"));
    let root = client(&url, &Credentials { ca: ca.clone(), ..showing(token.trim()) });
    root.set_rules(&limited(LIMIT)).unwrap();
    assert_eq!(root.revoke_token("admin").unwrap_err().code(), ErrorCode::LastAdminToken);
    let nobody = client(&url, &Credentials { ca, ..Credentials::default() });
    assert_eq!(nobody.rules().unwrap_err().code(), ErrorCode::Unauthenticated);

    // A certificate alone is not enough.
    let other = TestFolder::new();
    let (cert, key) = (rest[1], rest[3]);
    let flags = ["--listen", "https://0.0.0.0:0", "--tls-cert", cert, "--tls-key", key];
    let error = sluice(&[&["controller", "--data", text(other.path())], &flags[..]].concat());
    let error = error.unwrap_err();
    let command = error.lines().find_map(|line| line.strip_prefix("  sluice ")).unwrap();
    sluice(&command.split(' ').collect::<Vec<_>>()).unwrap();
    let _started = Controller::with(other.path(), flags[1], &flags[2..], "ready");
}

#[test]
fn each_accepted_change_is_written_down_and_no_refused_one() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let admin = client(&controller.url, &showing(&root));
    let ann = token(&admin, "ann", Role::Operate);
    let operator = client(&controller.url, &showing(&ann));
    operator.set_rules(&limited(LIMIT)).unwrap();
    let wrong = operator.set_rules("[[rule]]\nname = 3\n").unwrap_err();
    assert_eq!((wrong.code(), wrong.at()), (ErrorCode::InvalidRules, Some("2:8")));
    operator.set_rules(&limited(LIMIT + 1)).unwrap();
    let refused = operator.revoke_token("root").unwrap_err();
    assert_eq!(refused.code(), ErrorCode::PermissionDenied);
    let report = ProxyReport { epoch: 1, ..ProxyReport::default() };
    admin.report("a", &report).unwrap();
    admin.revoke_token("ann").unwrap();

    let lines = admin.audit("since=-1h&limit=100").unwrap().lines;
    let told: Vec<_> = lines.iter().map(|line| (&*line.actor, &*line.what)).collect();
    let expected = [
        ("offline", "token root"),
        ("root", "token ann"),
        ("ann", "rules"),
        ("ann", "rules"),
        ("root", "token ann"),
    ];
    assert_eq!(told, expected);
    assert_eq!(lines[2].before, None);
    assert_eq!(lines[2].after, Some(limited(LIMIT)));
    assert_eq!(lines[3].before, Some(limited(LIMIT)));
    assert_eq!(lines[3].after, Some(limited(LIMIT + 1)));
    assert_eq!(
        (lines[1].after.as_deref(), lines[4].after.as_deref()),
        (Some("role operate"), None)
    );
    assert!(lines[0].from.contains("without a controller") && lines[1].from.contains("127.0.0.1:"));
    let file = data.path().join("audit.log");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let kept =
        fs::read_to_string(&file).unwrap() + &fs::read_to_string(data.path().join("lock")).unwrap();
    assert!(!kept.contains("slc_"), "{kept}");
    let kept = fs::read(data.path().join("decided.db")).unwrap();
    let has = |needle: &str| kept.windows(needle.len()).any(|window| window == needle.as_bytes());
    assert!(!has(&root[4..]) && !has(&ann[4..]), "a token's text is on record");

    assert_eq!(admin.audit("limit=1").unwrap().omitted, 4);
    for (query, at) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("since=then", "since"),
        ("until=now", "until"),
    ] {
        let error = admin.audit(query).unwrap_err();
        assert_eq!((error.code(), error.at()), (ErrorCode::InvalidArgument, Some(at)));
    }
    let variables = [("SLUICE_TOKEN", &*root), ("SLUICE_CONTROLLER", &*controller.url)];
    let told = sluice_with(&["audit", "--since", "1h"], &variables).unwrap();
    let added = format!("  + limit = \"{}B/s\"", LIMIT + 1);
    assert!(told.contains("ann (operate, 127.0.0.1:") && told.contains(&added), "{told}");
    let json = sluice_with(&["audit", "--json"], &variables).unwrap();
    assert_eq!(serde_json::from_str::<AuditLines>(&json).unwrap().lines, lines);
}

#[test]
fn commands_say_what_role_is_needed_and_take_no_secret_that_others_may_read() {
    let data = TestFolder::new();
    let root = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let admin = client(&controller.url, &showing(&root));
    let ann = secret(data.path().join("ann"), &token(&admin, "ann", Role::Read));
    let url = controller.url.as_str();
    let rule = |args: &[&str], file: &str| {
        sluice_with(
            &[&["rule"], args, &["--controller", url]].concat(),
            &[("SLUICE_TOKEN_FILE", file)],
        )
    };
    rule(&["list"], text(&ann)).unwrap();
    let start = ["start", "jobs", "--match", "*", "--limit", "20MB/s"];
    let error = rule(&start, text(&ann)).unwrap_err();
    let says = "PUT /v1/rules needs role operate, and ann has role read";
    assert!(error.contains(says), "{error}");
    let bob = secret(data.path().join("bob"), &token(&admin, "bob", Role::Operate));
    rule(&start, text(&bob)).unwrap();
    fs::set_permissions(&bob, fs::Permissions::from_mode(0o644)).unwrap();
    let error = rule(&["list"], text(&bob)).unwrap_err();
    assert!(error.contains("mode 0644") && error.contains(text(&bob)), "{error}");
    let remote = ["rule", "list", "--controller", "http://192.0.2.1:1", "--token-file", text(&ann)];
    let error = sluice(&remote).unwrap_err();
    assert!(error.contains("unencrypted; use https://192.0.2.1:1"), "{error}");

    // Any user may listen at the default address while no controller does.
    for variable in [("SLUICE_TOKEN", root.as_str()), ("SLUICE_TOKEN_FILE", text(&ann))] {
        for words in [&["reserve", "list"][..], &["usage"], &["token", "list"], &["events"]] {
            let error = sluice_with(words, &[variable]).unwrap_err();
            assert!(error.contains("set SLUICE_CONTROLLER"), "{words:?}: {error}");
        }
    }
    let flags = ["reserve", "credit", "--token-file", text(&ann), "--json"];
    let error = sluice(&flags).unwrap_err();
    let report: api::ErrorReport = serde_json::from_str(&error).unwrap();
    assert_eq!(report.code, ErrorCode::InvalidArgument, "{error}");

    let running = ["token", "list", "--data", text(data.path())];
    let error = sluice(&running).unwrap_err();
    assert!(error.contains("give --controller URL instead of --data"), "{error}");
    let made = sluice_with(
        &["token", "create", "eve", "--role", "user", "--user", "root", "--json"],
        &[("SLUICE_TOKEN", &root), ("SLUICE_CONTROLLER", url)],
    );
    let made: api::MadeToken = serde_json::from_str(&made.unwrap()).unwrap();
    assert_eq!((made.record.user, &made.token[..4]), (Some(0), "slc_"));
    let page = sluice_with(&["metrics", "show", url], &[("SLUICE_TOKEN", &root)]).unwrap();
    assert!(page.contains("sluice_"), "{page}");
}

#[test]
fn controllers_of_one_etcd_share_tokens_and_one_that_stands_by_copies_with_its_own() {
    let Some(cluster) = testkit::Cluster::start() else { return };
    let data = TestFolder::new();
    let store = format!("etcd:{}", cluster.endpoints().join(","));
    let dirs = ["1", "2"].map(|name| data.path().join(name));
    let offline = |args: &[&str]| {
        let place = ["--data", text(&dirs[0]), "--store", &store];
        sluice(&[&["token"], args, &place].concat())
    };
    let root = offline(&["create", "root", "--role", "admin"]).unwrap();
    let copies = offline(&["create", "copies", "--role", "read"]).unwrap();
    let file = secret(data.path().join("copies"), &copies);
    let flags = ["--store", &store, "--token-file", text(&file)];
    let start = |dir| Controller::with(dir, "http://127.0.0.1:0", &flags, "listening on ");
    let mut controllers = dirs.each_ref().map(|dir| start(dir));
    let clients = controllers.each_ref().map(|one| client(&one.url, &showing(root.trim())));
    let leader = |not: Option<usize>| {
        let leads =
            |at: usize| clients[at].controller_status().is_ok_and(|status| status.is_leader);
        until("one leads", || (0..2).any(|at| Some(at) != not && leads(at)));
        (0..2).find(|at| Some(*at) != not && leads(*at)).unwrap()
    };
    let first = leader(None);
    let ann = token(&clients[first], "ann", Role::Read);
    let other = 1 - first;
    until("what was used is copied", || {
        clients[other].controller_status().unwrap().replication_lag_ns.is_some()
    });
    let place = ["--data", text(data.path()), "--store", &store];
    let error = sluice(&[&["token", "list"], &place[..]].concat()).unwrap_err();
    assert!(error.contains(&controllers[first].url) && error.contains("is the leader"), "{error}");
    controllers[first].kill();
    let second = leader(Some(first));
    let reader = client(&controllers[second].url, &showing(&ann));
    reader.rules().unwrap();
    assert_eq!(reader.tokens().unwrap_err().code(), ErrorCode::PermissionDenied);
}
