use super::file::{FILE_NAME, LogFile};
use super::*;

fn id(n: u8) -> ExchangeId {
    ExchangeId([n; 16])
}

fn metrics() -> Metrics {
    let text = "pools: [{name: a, models: [m]}]\nendpoints: {file: e.yaml}\n";
    let config = crate::config::Config::parse(text, Path::new("test.yaml")).expect("a good configuration");
    Metrics::new(&config)
}

fn line(n: u8, revision: u32, ended: u64) -> String {
    format!("{{\"exchange\":\"{}\",\"revision\":{revision},\"ended_unix_ms\":{ended},\"more\":1}}\n", id(n))
}

fn recalled(dir: &Path, since_ms: u64) -> Vec<(ExchangeId, u32)> {
    let mut all = Vec::new();
    LogFile::open(dir, since_ms, |id, closed| all.push((id, closed.revision))).expect("opens");
    all
}

#[test]
fn a_restart_recalls_whole_lines_and_cuts_a_torn_one_off() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join(FILE_NAME);
    let whole = line(1, 0, 50) + "not a record\n" + &line(1, 1, 60) + &line(2, 1, 10);
    std::fs::write(&path, whole.clone() + "{\"exchange\":\"torn").expect("write");
    assert_eq!(recalled(dir.path(), 20), [(id(1), 0), (id(1), 1)]);
    assert_eq!(std::fs::read_to_string(&path).expect("read"), whole);
    let mut file = LogFile::open(dir.path(), 0, |_, _| ()).expect("opens");
    file.append(line(3, 1, 70).as_bytes()).expect("writes");
    assert_eq!(std::fs::read_to_string(&path).expect("read"), whole + &line(3, 1, 70));
}

#[test]
fn a_long_file_is_put_aside_and_still_recalled() {
    let dir = tempfile::tempdir().expect("dir");
    let mut file = LogFile::open(dir.path(), 0, |_, _| ()).expect("opens").rotate_at(10);
    file.append(line(1, 1, 50).as_bytes()).expect("writes");
    file.append(line(2, 1, 51).as_bytes()).expect("writes");
    drop(file);
    assert_eq!(recalled(dir.path(), 0), [(id(1), 1), (id(2), 1)]);
    assert_eq!(std::fs::read_to_string(dir.path().join(FILE_NAME)).expect("read"), line(2, 1, 51));
}

#[tokio::test]
async fn what_is_confirmed_is_in_the_file() {
    let dir = tempfile::tempdir().expect("dir");
    let (log, thread) = ExchangeLog::open(dir.path(), 0, &metrics(), |_, _| ()).expect("opens");
    log.queue.send(Item::Line(line(1, 1, 5).into_bytes())).await.expect("queue");
    log.written(Duration::from_secs(10)).await.expect("written");
    let text = std::fs::read_to_string(dir.path().join(FILE_NAME)).expect("read");
    assert_eq!(text, line(1, 1, 5));
    drop(log);
    thread.join().expect("the writer ends with its last sender");
}

#[test]
fn a_disk_that_refuses_is_an_error_and_leaves_no_torn_line() {
    let dir = tempfile::tempdir().expect("dir");
    let mut file = LogFile::open(dir.path(), 0, |_, _| ()).expect("opens");
    file.append(line(1, 1, 5).as_bytes()).expect("writes");
    let mut file = file.refusing();
    assert!(file.append(line(2, 1, 5).as_bytes()).is_err());
    drop(file);
    assert_eq!(recalled(dir.path(), 0), [(id(1), 1)]);
}

#[test]
fn what_is_not_a_log_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join(FILE_NAME);
    std::os::unix::fs::symlink("/dev/zero", &path).expect("link");
    assert!(LogFile::open(dir.path(), 0, |_, _| ()).is_err(), "it would be read for ever");
    std::fs::remove_file(&path).expect("unlink");
    std::fs::write(&path, "x".repeat(2 << 20)).expect("write");
    assert!(LogFile::open(dir.path(), 0, |_, _| ()).is_err());
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 2 << 20, "not ours to cut");
}

#[test]
fn a_log_that_is_moved_or_removed_while_it_is_open_is_begun_anew() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join(FILE_NAME);
    let mut file = LogFile::open(dir.path(), 0, |_, _| ()).expect("opens");
    file.append(line(1, 1, 5).as_bytes()).expect("writes");
    std::fs::rename(&path, dir.path().join("moved")).expect("move");
    file.append(line(2, 1, 5).as_bytes()).expect("writes");
    assert_eq!(std::fs::read_to_string(&path).expect("read"), line(2, 1, 5));
    std::fs::remove_file(&path).expect("remove");
    file.append(line(3, 1, 5).as_bytes()).expect("writes");
    assert_eq!(std::fs::read_to_string(&path).expect("read"), line(3, 1, 5));
}

#[test]
fn two_processes_never_write_one_log() {
    let dir = tempfile::tempdir().expect("dir");
    let first = LogFile::open(dir.path(), 0, |_, _| ()).expect("opens");
    let error = LogFile::open(dir.path(), 0, |_, _| ()).err().expect("refused");
    assert!(error.to_string().contains("another tokenweir process"), "{error}");
    drop(first);
    assert!(LogFile::open(dir.path(), 0, |_, _| ()).is_ok());
}

#[tokio::test]
async fn places_are_taken_before_and_given_back_when_unused() {
    let dir = tempfile::tempdir().expect("dir");
    let (log, thread) = ExchangeLog::open(dir.path(), 0, &metrics(), |_, _| ()).expect("opens");
    for _ in 0..3 {
        drop(log.places(QUEUE_MAX, Duration::from_secs(5)).await.expect("all places"));
    }
    let held = log.places(QUEUE_MAX, Duration::from_secs(5)).await.expect("all places");
    assert!(
        log.places(1, Duration::from_millis(20)).await.is_err(),
        "none is left, so nothing may be settled"
    );
    drop(held);
    drop(log);
    thread.join().expect("ends");
}
