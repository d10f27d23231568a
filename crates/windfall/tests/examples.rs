//! The examples in `examples/` run to their end; each checks its own result.

#[path = "../examples/handler.rs"]
mod handler;
#[path = "../examples/partitions.rs"]
mod partitions;
#[path = "../examples/queue.rs"]
mod queue;
#[path = "../examples/tags.rs"]
mod tags;
#[path = "../examples/transfers.rs"]
mod transfers;

fn ends(example: fn(&std::path::Path) -> windfall::Result<()>) {
    let folder = tempfile::tempdir().expect("a folder");
    example(folder.path()).expect("it runs to its end");
}

#[test]
fn transfers_keep_the_sum() {
    ends(transfers::run);
}

#[test]
fn each_job_is_done_once() {
    ends(queue::run);
}

#[test]
fn pages_are_found_by_their_tags() {
    ends(tags::run);
}

#[test]
fn days_are_dropped_during_reads_and_writes() {
    ends(partitions::run);
}

#[test]
fn the_calls_of_a_server_take_effect() {
    ends(handler::run);
}
