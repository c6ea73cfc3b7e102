//! The ways in: TLS, gRPC health, the Unix socket; and streams that are held.

use std::time::Duration;

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::play::{Served, Stream, decision};

const EXT_PROC: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

async fn health(channel: Channel, service: &str) -> Result<ServingStatus, tonic::Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel).check(request).await.map(|answer| answer.into_inner().status())
}

#[tokio::test]
async fn grpc_health_tells_when_the_service_goes_away() {
    let served = Served::start("drain: {delay_s: 30, grace_s: 1}\n").await;
    let channel = served.channel().await;
    for service in ["", EXT_PROC] {
        assert_eq!(health(channel.clone(), service).await.expect("answers"), ServingStatus::Serving);
    }
    served.terminate();
    let mut told = ServingStatus::Serving;
    for _ in 0..200 {
        told = health(channel.clone(), EXT_PROC).await.expect("answers");
        if told == ServingStatus::NotServing {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(told, ServingStatus::NotServing);
    // Envoy has not noticed yet: its streams are still served.
    let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("still served");
    assert!(decision(&stream.verdict().await).is_some());
}

#[tokio::test]
async fn with_tls_only_clients_of_the_right_authority_get_in() {
    let dir = tempfile::tempdir().expect("dir");
    let authority = rcgen::KeyPair::generate().expect("key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("params");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = params.self_signed(&authority).expect("root");
    let issuer = rcgen::Issuer::from_params(&params, &authority);
    let issue = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("key");
        let leaf = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("params");
        (leaf.signed_by(&key, &issuer).expect("signed").pem(), key.serialize_pem())
    };
    let (cert, key) = issue("localhost");
    for (name, text) in [("cert.pem", &cert), ("key.pem", &key), ("ca.pem", &root.pem())] {
        std::fs::write(dir.path().join(name), text).expect("write");
    }
    let served = Served::start_with(&format!(
        "tls: {{cert_file: {0}/cert.pem, key_file: {0}/key.pem, client_ca_file: {0}/ca.pem}}",
        dir.path().display()
    ))
    .await;
    let connect = |identity: Option<(String, String)>| {
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(root.pem())).domain_name("localhost");
        if let Some((cert, key)) = identity {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", served.grpc)).expect("uri");
        endpoint.tls_config(tls).expect("tls").connect_lazy()
    };
    let envoy = connect(Some(issue("envoy")));
    assert_eq!(health(envoy, EXT_PROC).await.expect("answers"), ServingStatus::Serving);
    assert!(health(connect(None), EXT_PROC).await.is_err(), "no certificate, no entry");
    let plain = Endpoint::from_shared(format!("http://{}", served.grpc)).expect("uri").connect_lazy();
    assert!(health(plain, EXT_PROC).await.is_err(), "no TLS, no entry");
}

#[tokio::test]
async fn a_held_stream_stays_open_and_its_end_is_the_exchanges_end() {
    let served = Served::start("exchange: {hold_stream: true}\n").await;
    let mut stream = Stream::open(&served, BodySendMode::Buffered).await.expect("open");
    stream.verdict().await;
    stream.response_headers("127.0.0.1:9001").await;
    stream.reply().await.expect("open").expect("go on");
    let nothing = tokio::time::timeout(Duration::from_millis(500), stream.reply()).await;
    assert!(nothing.is_err(), "the stream is held");
    assert!(served.metric("tokenweir_open_exchanges").await > 0.5);
    stream.send = None;
    assert!(stream.reply().await.expect("OK").is_none());
    for _ in 0..100 {
        if !served.records().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let records = served.records();
    assert_eq!((&records[0]["endpoint"], &records[0]["status"]), (&"127.0.0.1:9001".into(), &200.into()));
    assert!(served.metric("tokenweir_open_exchanges").await < 0.5);
}

#[tokio::test]
async fn an_idle_service_is_gone_at_once() {
    let mut served = Served::start("drain: {delay_s: 0, grace_s: 30}\n").await;
    served.terminate();
    // The fault that this is about took five seconds.
    assert!(served.exit(Duration::from_millis(4500)).await.success());
}
