use std::path::Path;

use ext_proc_pick::{Endpoint, Prefix, Settings};

use super::*;

const EXCHANGE: ExchangeId = ExchangeId([7; 16]);

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn config(pools: &str) -> Config {
    let text = format!("pools: [{pools}]\nendpoints: {{file: e.yaml}}\n");
    Config::parse(&text, Path::new("test.yaml")).expect("a good configuration")
}

struct Set {
    stored: StoredResponses,
    pools: Pools,
    ring: KeyRing,
}

impl Set {
    /// Pools `a` and `b` of vLLM, `c` of a provider; `a` has the endpoints 1 to 3, `b` 4, `c` 5.
    fn new() -> Self {
        let text = "{name: a, models: [m]}, {name: b, models: [n]}, {name: c, models: [o], engine: openai}";
        Self::of(text)
    }

    fn of(pools: &str) -> Self {
        let config = config(pools);
        let names = config.pools.iter().map(|pool| (pool.name.clone(), Settings::default()));
        let pools = Pools::new(names, &crate::metrics::Metrics::new(&config));
        let set = Self {
            stored: StoredResponses::new(&config),
            pools,
            ring: KeyRing::new([("k", [1u8; 32].as_slice())]).expect("a ring"),
        };
        set.endpoints(&[1, 2, 3]);
        set
    }

    fn endpoints(&self, a: &[u16]) {
        let list = |ports: &[u16]| {
            ports.iter().map(|port| Endpoint { address: address(*port), ready: true }).collect()
        };
        let view = [("a", list(a)), ("b", list(&[4])), ("c", list(&[5]))];
        self.pools.replace(&view.into_iter().map(|(name, list)| (name.to_owned(), list)).collect());
    }

    /// The id of a response in `pool` by the endpoint at `port`.
    fn id(&self, pool: &str, port: u16) -> String {
        self.ring.name_response(EXCHANGE, Keeper { tenant: "team-a", pool, endpoint: address(port) })
    }

    fn ask(&self, api: Api, tenant: &str, id: &str) -> Result<Option<(String, Option<u16>)>, Denial> {
        let inquiry = Inquiry {
            api,
            model: String::new(),
            pool: if api == Api::StoredResponse { String::new() } else { "a".to_owned() },
            tenant: tenant.to_owned(),
            stream: false,
            request_id: String::new(),
            prefix: Prefix::default(),
            prompt_bytes: 0,
            prompt_token_ids: 0,
            output_tokens_max: None,
            stored: Some(id.to_owned()),
            names_response: false,
            background: false,
        };
        let home = self.stored.home(&inquiry, &self.pools, &self.ring)?;
        Ok(home.map(|home| (home.pool, home.endpoint.map(|endpoint| endpoint.port()))))
    }
}

const FETCH: Api = Api::StoredResponse;
const GO_ON: Api = Api::Responses;

fn at(pool: &str, port: u16) -> Result<Option<(String, Option<u16>)>, Denial> {
    Ok(Some((pool.to_owned(), Some(port))))
}

const UNKNOWN: Result<Option<(String, Option<u16>)>, Denial> = Err(Denial::Gone);

#[test]
fn an_id_leads_to_the_endpoint_that_it_was_made_for() {
    let set = Set::new();
    for port in [1, 2, 3] {
        assert_eq!(set.ask(FETCH, "team-a", &set.id("a", port)), at("a", port));
        assert_eq!(set.ask(GO_ON, "team-a", &set.id("a", port)), at("a", port));
    }
    assert_eq!(set.ask(FETCH, "team-a", &set.id("b", 4)), at("b", 4));
    assert_eq!(set.ask(GO_ON, "team-a", &set.id("b", 4)), UNKNOWN, "a model goes on in its own pool");
}

#[test]
fn what_is_foreign_forged_or_gone_goes_to_no_engine() {
    let set = Set::of("{name: a, models: [m]}, {name: b, models: [n]}");
    let id = set.id("a", 2);
    let forged = id.replace("0707", "0708");
    for api in [FETCH, GO_ON] {
        assert_eq!(set.ask(api, "team-b", &id), UNKNOWN);
        for other in [forged.as_str(), "", "resp_1", "chatcmpl-1"] {
            assert_eq!(set.ask(api, "team-a", other), UNKNOWN, "{other}");
        }
    }
    set.endpoints(&[1, 3]);
    assert_eq!(set.ask(FETCH, "team-a", &id), UNKNOWN);
    set.endpoints(&[1, 2]);
    assert_eq!(set.ask(FETCH, "team-a", &id), at("a", 2), "back again");
}

#[test]
fn what_is_not_ours_goes_to_the_one_provider_if_it_is_one() {
    let set = Set::new();
    assert_eq!(set.ask(FETCH, "team-a", "resp_of-theirs"), Ok(Some(("c".to_owned(), None))));
    assert_eq!(set.ask(GO_ON, "team-a", "resp_of-theirs"), UNKNOWN, "pool a keeps its own");
    let two = "{name: a, models: [m]}, {name: c, models: [o], engine: openai}, {name: d, models: [p], engine: openai}";
    assert_eq!(Set::of(two).ask(FETCH, "team-a", "resp_of-theirs"), UNKNOWN, "which of the two?");
}

#[test]
fn where_the_pick_refused_the_response_is_found_at_the_one_that_served() {
    let set = Set::new();
    let id = set.id("a", 1);
    set.stored.served(EXCHANGE, address(1), address(1));
    assert_eq!(set.ask(FETCH, "team-a", &id), at("a", 1));
    set.stored.served(EXCHANGE, address(1), address(3));
    assert_eq!(set.ask(FETCH, "team-a", &id), at("a", 3));
    assert_eq!(set.ask(GO_ON, "team-a", &id), at("a", 3));
    set.endpoints(&[2, 3]);
    assert_eq!(set.ask(FETCH, "team-a", &id), at("a", 3), "the dead pick has left the pool");
    let other = Set::of("{name: a, models: [m]}");
    other.stored.served(EXCHANGE, address(1), address(3));
    assert_eq!(other.ask(FETCH, "team-b", &id), UNKNOWN, "a move vouches for nobody");
    other.endpoints(&[1, 2]);
    assert_eq!(other.ask(FETCH, "team-a", &id), UNKNOWN, "the picked one never had it");
}

#[test]
fn the_log_tells_where_responses_went() {
    let line = |api: &str, status: u32, endpoint: &str| {
        let text = format!(
            r#"{{"exchange":"{EXCHANGE}","revision":1,"ended_unix_ms":5,"api":"{api}","status":{status},"endpoints":["127.0.0.1:1","127.0.0.1:2"],"endpoint":{endpoint}}}"#
        );
        serde_json::from_str::<Closed>(&text).expect("a line")
    };
    let found = |line: &Closed| {
        let set = Set::new();
        set.stored.recall(EXCHANGE, line);
        set.ask(FETCH, "team-a", &set.id("a", 1))
    };
    assert_eq!(found(&line("responses", 200, r#""127.0.0.1:2""#)), at("a", 2));
    assert_eq!(found(&line("responses", 500, r#""127.0.0.1:2""#)), at("a", 1), "it made no response");
    assert_eq!(found(&line("responses", 200, "null")), at("a", 1));
    assert_eq!(found(&line("responses", 200, r#""a socket""#)), at("a", 1));
    assert_eq!(found(&line("chat_completions", 200, r#""127.0.0.1:2""#)), at("a", 1));
}

#[test]
fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
    let set = Set::new();
    let exchange = |n: usize| ExchangeId((n as u128).to_be_bytes());
    for n in 0..=MOVED_MAX {
        set.stored.served(exchange(n), address(1), address(2));
        set.stored.served(exchange(n), address(1), address(3));
    }
    let moved = set.stored.moved();
    assert_eq!((moved.moves.len(), moved.order.len()), (MOVED_MAX, MOVED_MAX));
    assert!(!moved.moves.contains_key(&exchange(0)) && moved.moves.contains_key(&exchange(1)));
}
