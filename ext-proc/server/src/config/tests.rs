use std::path::{Path, PathBuf};

use ext_proc_pick::Settings;
use proptest::prelude::{any, proptest};

use super::*;

const SMALL: &str = "pools:\n  - name: a\n    models: [m]\nendpoints: {file: endpoints.yaml}\n";

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, Path::new("tokenweir.yaml"))
}

#[test]
fn a_small_file_gets_every_default() {
    let config = parse(SMALL).expect("valid");
    assert_eq!(config.listen.grpc, vec![GrpcAddress::Tcp("127.0.0.1:50051".parse().unwrap())]);
    assert_eq!(config.listen.admin, "127.0.0.1:9090".parse().unwrap());
    assert_eq!(config.limits.message_bytes_max(), 33 << 20);
    assert_eq!(config.exchange.lease.as_secs(), 600);
    assert_eq!((config.tenant.trusted, config.tenant.default.as_deref()), (false, Some("anonymous")));
    let pool = &config.pools[0];
    assert_eq!(
        (pool.pick.strategy, pool.usage, pool.engine),
        (ext_proc_pick::Strategy::LeastWork, UsageMode::Inject, EngineKind::Vllm)
    );
    let defaults = Settings::default();
    assert!((pool.pick.speed.c_p - defaults.speed.c_p).abs() < 1e-12);
    assert_eq!(Settings { speed: defaults.speed, ..pool.pick }, defaults, "one set of defaults");
    let signals = &config.signals;
    assert!(signals.enabled);
    assert_eq!(
        (signals.idle.as_millis(), signals.busy.as_millis(), signals.stuck.as_secs()),
        (1_000, 250, 30)
    );
    assert_eq!(config.endpoints.poll.as_millis(), 500);
    assert_eq!(config.pool_of("m").map(|pool| pool.name.as_str()), Some("a"));
    assert_eq!(config.pool_of("n"), None);
}

#[test]
fn a_full_file_is_read_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("k1"), [7; 32]).expect("a key");
    for (file, label) in [("c.pem", "CERTIFICATE"), ("k.pem", "PRIVATE KEY")] {
        let text = format!("-----BEGIN {label}-----\nAA==\n-----END {label}-----\n");
        std::fs::write(folder.path().join(file), text).expect("a PEM file");
    }
    let text = "\
listen:
  grpc: ['127.0.0.1:50051', 'unix:/run/tokenweir.sock']
  admin: '[::1]:9090'
  tls: {cert_file: c.pem, key_file: k.pem, client_ca_file: c.pem}
replica: tokenweir-0
state_dir: state
limits: {body_bytes_max: 2048, streams_max: 10, message_headroom_bytes: 65536}
exchange: {hold_stream: true, lease_s: 30, progress_lease_s: 20, token_lifetime_s: 90, retry_after_s: 2}
token_keys: [{id: k1, file: k1}]
tenant: {header: X-Team, trusted: true}
drain: {delay_s: 0, grace_s: 1}
signals: {enabled: true, idle_ms: 2000, busy_ms: 100, timeout_ms: 700, models_s: 5, stuck_s: 9}
pools:
  - {name: a, models: [m, n], strategy: round_robin, usage: forced, engine: openai}
  - name: b
    models: [o]
    strategy: prefix_only
    pick: {stale_ms: 9000, exploration: 0, penalty_ms: 0, bytes_per_token: 3.5, output_tokens: 90, kv_capacity_tokens: 8192,
      lora_load_ms: 1500, prefix_chunks_max: 0, speed: {step_ms: 1, prefill_us: 2, attention_ns: 3, stream_us: 4, context_us: 5}}
endpoints: {file: /e.yaml, poll_ms: 50}
";
    let file = folder.path().join("tokenweir.yaml");
    std::fs::write(&file, text).expect("a file");
    let config = Config::load(&file).expect("valid");
    let unix = GrpcAddress::Unix(PathBuf::from("/run/tokenweir.sock"));
    assert_eq!(config.listen.grpc[1], unix);
    assert_eq!(config.listen.tls.as_ref().map(|tls| tls.key_file.clone()), Some(folder.path().join("k.pem")));
    assert_eq!(config.state_dir, folder.path().join("state"));
    assert_eq!(config.token_keys[0].secret.bytes(), &[7; 32]);
    assert_eq!(config.tenant.header, "x-team");
    assert_eq!(config.tenant.default, None);
    assert_eq!(config.exchange.token_lifetime.as_secs(), 90);
    assert_eq!(
        config.endpoints,
        EndpointsSource { file: "/e.yaml".into(), poll: std::time::Duration::from_millis(50) }
    );
    let signals = config.signals;
    assert_eq!((signals.timeout.as_millis(), signals.models.as_secs(), signals.stuck.as_secs()), (700, 5, 9));
    let pick = config.pools[1].pick;
    assert_eq!((pick.strategy.as_label(), pick.stale_ms, pick.penalty_ms), ("prefix_only", 9_000, 0));
    assert_eq!((pick.kv_capacity_tokens, pick.chunks_max), (8_192, 0));
    let speed = pick.speed;
    for (have, want) in [
        (pick.exploration, 0.0),
        (pick.bytes_per_token, 3.5),
        (pick.output_tokens, 90.0),
        (pick.lora_load_s, 1.5),
        (speed.c0, 1e-3),
        (speed.c_p, 2e-6),
        (speed.c_a, 3e-9),
        (speed.c_b, 4e-6),
        (speed.c_kv, 5e-6),
    ] {
        assert!((have - want).abs() < 1e-12, "{have} is not {want}");
    }
    // The effective configuration may be logged: no secret is in its text.
    assert!(format!("{config:?}").contains("Secret(32 bytes)"));
}

/// Each `NAME.yaml` has its errors in `NAME.txt`.
#[test]
fn every_golden_file_gives_its_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config-errors");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|ext| ext == "yaml") {
            let text = std::fs::read_to_string(&path).expect("text");
            let errors = parse(&text).expect_err("a file with errors").to_string();
            let golden = path.with_extension("txt");
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&golden, format!("{errors}\n")).expect("written");
            }
            let want = std::fs::read_to_string(&golden).expect("the expected errors");
            assert_eq!(errors, want.trim_end(), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 10, "only {seen} golden files");
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokenweir.yaml");
    let shown = |file: &Path| {
        Config::load(file).expect_err("an error").to_string().replace(&file.display().to_string(), "F")
    };
    assert!(shown(&file).starts_with("F: cannot be read: No such file"));
    std::fs::write(&file, b"pools: \xff\n").expect("written");
    assert_eq!(shown(&file), "F: is not UTF-8 text (byte 7); save it as UTF-8");
    std::fs::write(&file, vec![b' '; FILE_BYTES_MAX + 1]).expect("written");
    assert_eq!(shown(&file), "F: has more than 4194304 bytes; name the right file");
}

#[test]
fn secrets_and_certificates_are_looked_at() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("short"), [7; 31]).expect("a key");
    std::fs::write(folder.path().join("not-pem"), "hello").expect("a file");
    let file = folder.path().join("tokenweir.yaml");
    let text = format!(
        "{SMALL}listen:\n  tls:\n    cert_file: not-pem\n    key_file: none\ntoken_keys:\n  - {{id: a, file: short}}\n"
    );
    let errors = Config::parse(&text, &file).expect_err("errors");
    let lines: Vec<_> = errors.iter().map(|error| (error.line, error.key.as_str())).collect();
    assert_eq!(lines, [(7, "listen.tls.cert_file"), (8, "listen.tls.key_file"), (10, "token_keys[0].file")]);
    assert!(errors.to_string().contains("has 31 bytes, fewer than 32"), "{errors}");
    assert!(errors.to_string().contains("holds no PEM block CERTIFICATE"), "{errors}");
}

#[test]
fn the_number_of_errors_is_bounded() {
    let many: String = (0..1000).map(|n| format!("key{n}: 1\n")).collect();
    let errors = parse(&format!("{SMALL}{many}")).expect_err("errors");
    assert_eq!(errors.iter().count(), yaml::PROBLEMS_MAX);
}

#[test]
fn the_schema_is_valid_and_describes_every_key() {
    fn described(at: &str, part: &serde_json::Value) {
        for (key, property) in part.get("properties").and_then(|p| p.as_object()).into_iter().flatten() {
            assert!(property.get("description").is_some(), "{at}.{key} has no description");
            described(&format!("{at}.{key}"), property);
        }
        if let Some(items) = part.get("items") {
            described(&format!("{at}[]"), items);
        }
    }
    let schema: serde_json::Value = serde_json::from_str(&Config::schema()).expect("JSON");
    jsonschema::meta::validate(&schema).expect("a valid schema");
    described("", &schema);
    assert_eq!(schema["properties"]["listen"]["properties"]["tls"]["additionalProperties"], false);
}

#[test]
fn defaults_fit_their_own_schema() {
    let file: ConfigFile =
        serde_json::from_value(yaml::parse(SMALL).0.expect("a document").value).expect("read");
    let text = serde_json::to_string(&file).expect("written");
    parse(&text).expect("JSON is YAML, and the defaults are valid");
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_mix_of_yaml_signs_panics(text in "[-:?&*!|>{}\\[\\],'\"# \n\ta-c0-9%@`~]{0,120}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_change_of_a_valid_file_panics(at in 0..SMALL.len(), text in "[-:?&*!|>{}\\[\\],'\"# \n\tab0]{0,6}") {
        let mut changed = SMALL.to_owned();
        changed.insert_str(at, &text);
        let _ = parse(&changed);
    }
}
