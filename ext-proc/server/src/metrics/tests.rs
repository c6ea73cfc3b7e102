use std::path::Path;

use proto_tokenweir::GAP_BUCKETS;
use proto_tokenweir::v1::GapHistogram;

use super::*;
use crate::endpoints::EndpointEntry;

fn metrics() -> Metrics {
    let text = "pools: [{name: a, models: [m]}, {name: b, models: [n], engine: openai}]\nendpoints: {file: e.yaml}\n";
    Metrics::new(&Config::parse(text, Path::new("tokenweir.yaml")).expect("valid"))
}

fn labels<'a>(model: &'a str, pool: &'a str, tenant: &'a str) -> Labels<'a> {
    Labels { model, pool, tenant, api: "chat_completions" }
}

/// Records something in every family.
fn exercise(metrics: &Metrics) {
    let gaps = GapHistogram { buckets: vec![1; GAP_BUCKETS], count: 18, sum_us: 2_000_000, max_us: 1 };
    let series = metrics.series(&labels("m", "a", "t"));
    series.answered(200);
    series.first_token(Duration::from_millis(30));
    series.ended(&Ended {
        duration: Duration::from_millis(1030),
        first_token: Some(Duration::from_millis(30)),
        tokens: Tokens { input: Some(100), output: Some(11), cached: Some(64) },
        gaps: Some(&gaps),
    });
    metrics.request_body("chat_completions", 1000);
    metrics.verdict(Duration::from_micros(30));
    let pool = metrics.pool("a");
    pool.picked("least_request");
    pool.scraped("ok", Duration::from_millis(7));
    pool.failed(Failure::Refused);
    pool.predicted(Prediction { prompt: 100, predicted: 80, reported: 64 });
    pool.predicted(Prediction { prompt: 50, predicted: 0, reported: 16 });
    let gauges = EndpointGauges { in_flight: 3, health: "stuck", ..EndpointGauges::default() };
    metrics.endpoints_seen([("a".to_owned(), "127.0.0.1:1".parse().unwrap(), gauges)].into_iter());
    metrics.open_exchanges(4);
    metrics.stream_opened();
    metrics.stream_opened();
    metrics.stream_closed();
    metrics.unmetered("no_report");
    metrics.report("end", ReportOutcome::Refused, "expired");
    metrics.report_late();
    metrics.rejected("unknown_model", "chat_completions");
    metrics.lease_expired();
    metrics.log_write_error();
    metrics.panicked();
    metrics.endpoints_age(Duration::from_millis(1500));
    let entry = |ready| EndpointEntry { address: "127.0.0.1:1".parse().unwrap(), ready };
    let pools = BTreeMap::from([("a".to_owned(), vec![entry(true), entry(true), entry(false)])]);
    metrics.endpoints_read(Some(&Endpoints { pools, generation: 1 }));
    metrics.endpoints_read(None);
}

#[test]
fn every_function_moves_its_own_metric() {
    let metrics = metrics();
    exercise(&metrics);
    let text = metrics.render();
    let gen_ai = "gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"vllm\",gen_ai_request_model=\"m\"";
    for line in [
        "tokenweir_requests_total{model=\"m\",pool=\"a\",tenant=\"t\",api=\"chat_completions\",status=\"200\",status_class=\"2xx\"} 1",
        "tokenweir_input_tokens_total{model=\"m\",pool=\"a\",tenant=\"t\"} 100",
        "tokenweir_output_tokens_total{model=\"m\",pool=\"a\",tenant=\"t\"} 11",
        "tokenweir_cached_tokens_total{model=\"m\",pool=\"a\",tenant=\"t\"} 64",
        "tokenweir_request_input_tokens_sum{model=\"m\",pool=\"a\"} 100",
        "tokenweir_request_output_tokens_sum{model=\"m\",pool=\"a\"} 11",
        "tokenweir_request_body_bytes_bucket{api=\"chat_completions\",le=\"1024\"} 1",
        "tokenweir_time_to_first_token_seconds_bucket{model=\"m\",pool=\"a\",le=\"0.05\"} 1",
        "tokenweir_time_to_first_token_seconds_count{model=\"m\",pool=\"a\"} 1",
        "tokenweir_inter_token_seconds_count{model=\"m\",pool=\"a\"} 18",
        "tokenweir_end_to_end_seconds_sum{model=\"m\",pool=\"a\"} 1.03",
        "tokenweir_verdict_seconds_bucket{le=\"0.00002\"} 0",
        "tokenweir_verdict_seconds_bucket{le=\"0.00005\"} 1",
        "tokenweir_picks_total{pool=\"a\",reason=\"least_request\"} 1",
        "tokenweir_signals_scrapes_total{pool=\"a\",outcome=\"ok\"} 1",
        "tokenweir_signals_scrape_seconds_bucket{pool=\"a\",le=\"0.01\"} 1",
        "tokenweir_endpoint_failures_total{pool=\"a\",cause=\"refused\"} 1",
        "tokenweir_prefix_prompt_tokens_total{pool=\"a\"} 150",
        "tokenweir_prefix_predicted_tokens_total{pool=\"a\"} 80",
        "tokenweir_prefix_reported_tokens_total{pool=\"a\"} 80",
        "tokenweir_prefix_error_tokens_total{pool=\"a\"} 32",
        "tokenweir_endpoint_health{pool=\"a\",endpoint=\"127.0.0.1:1\",health=\"stuck\"} 1",
        "tokenweir_in_flight{pool=\"a\",endpoint=\"127.0.0.1:1\"} 3",
        "tokenweir_endpoints{pool=\"a\",state=\"ready\"} 2",
        "tokenweir_endpoints{pool=\"a\",state=\"not_ready\"} 1",
        "tokenweir_open_exchanges 4",
        "tokenweir_ext_proc_streams 1",
        "tokenweir_unmetered_total{reason=\"no_report\"} 1",
        "tokenweir_reports_total{event=\"end\",outcome=\"refused\",reason=\"expired\"} 1",
        "tokenweir_reports_late_total 1",
        "tokenweir_rejects_total{reason=\"unknown_model\",api=\"chat_completions\"} 1",
        "tokenweir_lease_expired_total 1",
        "tokenweir_log_write_errors_total 1",
        "tokenweir_panics_total 1",
        "tokenweir_endpoints_reload_total{result=\"ok\"} 1",
        "tokenweir_endpoints_reload_total{result=\"invalid\"} 1",
        "tokenweir_endpoints_age_seconds 1.5",
        &format!("gen_ai_client_token_usage_sum{{{gen_ai},gen_ai_token_type=\"input\"}} 100"),
        &format!("gen_ai_client_token_usage_sum{{{gen_ai},gen_ai_token_type=\"output\"}} 11"),
        &format!("gen_ai_server_time_to_first_token_seconds_sum{{{gen_ai}}} 0.03"),
        &format!("gen_ai_server_time_per_output_token_seconds_sum{{{gen_ai}}} 0.1"),
        &format!("gen_ai_server_request_duration_seconds_sum{{{gen_ai}}} 1.03"),
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
    }
    for family in ALL {
        assert!(text.contains(&format!("# TYPE {} ", family.name)), "{} was not moved", family.name);
        assert!(text.contains(&format!("# HELP {} ", family.name)), "{} has no help", family.name);
    }
}

#[test]
fn the_page_lists_every_metric_with_its_labels() {
    let page = include_str!("../../../../docs/metrics.md");
    for family in ALL {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", family.name)));
        let row = row.unwrap_or_else(|| panic!("docs/metrics.md has no row for {}", family.name));
        for label in family.labels {
            assert!(row.contains(&format!("`{label}`")), "the row of {} lacks label {label}", family.name);
        }
    }
    for name in
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name)
    {
        assert!(
            ALL.iter().any(|family| family.name == name),
            "docs/metrics.md lists {name}, which does not exist"
        );
    }
}

#[test]
fn every_alert_reads_metrics_that_exist() {
    let rules = include_str!("../../../../docs/alerts/tokenweir.rules.yaml");
    let (document, problems) = crate::config::yaml::parse(rules);
    assert_eq!(problems, Vec::new());
    let document = document.expect("rules").value;
    let rules = document["groups"][0]["rules"].as_array().expect("a list");
    let mut read = 0;
    for rule in rules {
        let expression = rule["expr"].as_str().expect("an expression");
        for name in expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if name.starts_with("tokenweir_") {
                let family = ["_count", "_sum", "_bucket"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .unwrap_or(name);
                assert!(ALL.iter().any(|known| known.name == family), "{} reads {name}", rule["alert"]);
                read += 1;
            }
        }
    }
    assert!(read >= 10, "{read}");
}

#[test]
fn labels_cannot_grow_without_bound() {
    let metrics = metrics();
    for n in 0..TENANT_LABELS_MAX * 2 {
        metrics.series(&labels("m", "a", &format!("t{n}"))).answered(n);
    }
    metrics.series(&labels("raw text of a client", "what", "t1")).answered(404);
    metrics.series(&labels("", "", "t1")).answered(404);
    let text = metrics.render();
    let requests: Vec<_> =
        text.lines().filter(|line| line.starts_with("tokenweir_requests_total{")).collect();
    assert!(requests.iter().any(|line| line.contains("tenant=\"other\"")));
    assert!(requests.iter().any(|line| line.contains("model=\"other\",pool=\"other\"")));
    assert!(requests.iter().any(|line| line.contains("model=\"none\",pool=\"none\"")));
    assert!(requests.iter().any(|line| line.contains("status=\"0\",status_class=\"none\"")));
    assert!(!text.contains("raw text"));
    // What is no HTTP status is no label.
    assert!(requests.iter().any(|line| line.contains("status=\"599\",status_class=\"5xx\"")));
    assert!(!requests.iter().any(|line| line.contains("status=\"99\"") || line.contains("status=\"600\"")));
    let inputs =
        text.lines().filter(|line| line.starts_with("tokenweir_input_tokens_total{model=\"m\"")).count();
    assert_eq!(inputs, usize::from(TENANT_LABELS_MAX) + 1);
}

#[test]
fn the_same_labels_share_one_series() {
    let metrics = metrics();
    let first = metrics.series(&labels("m", "a", "t"));
    assert!(Arc::ptr_eq(&first, &metrics.clone().series(&labels("m", "a", "t"))));
    assert!(!Arc::ptr_eq(&first, &metrics.series(&labels("m", "a", "u"))));
}

#[test]
fn an_unknown_count_is_not_zero() {
    let metrics = metrics();
    let ended = Ended {
        duration: Duration::from_secs(1),
        first_token: None,
        tokens: Tokens { input: Some(5), output: None, cached: None },
        gaps: None,
    };
    metrics.series(&labels("m", "a", "t")).ended(&ended);
    let text = metrics.render();
    assert!(text.contains("tokenweir_request_input_tokens_count{model=\"m\",pool=\"a\"} 1"));
    assert!(!text.contains("tokenweir_request_output_tokens_count{model=\"m\",pool=\"a\"} 1"));
}
