//! A scheduler on several hosts: one of them, the leader, runs the jobs. When it resigns or fails,
//! another host becomes the leader and continues with the next job.
//!
//! ```sh
//! cargo run --example scheduler                              # in this process's memory
//! cargo run --example scheduler -- redis://127.0.0.1:6379    # on a server
//! ```

#[path = "shared/url.rs"]
mod url;

use distlock::{Error, FencingToken, LeadershipChange};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// The number of hosts. Each is a client of its own, as a process would be.
const HOSTS: usize = 3;

/// The number of jobs after which a host resigns.
const JOBS_OF_A_HOST: usize = 4;

/// The longest time that a job takes. A leader begins no job that may outlast its term, because the
/// next leader could run the same job.
const LONGEST_JOB: Duration = Duration::from_millis(100);

/// The resource that the jobs change. It refuses a leader after a write of a later term.
#[derive(Default)]
struct Journal(Mutex<Vec<Entry>>);

struct Entry {
    host: usize,
    term: FencingToken,
    job: usize,
}

impl Journal {
    /// Runs the next job, unless a leader of a later term has run one. Returns whether the job was
    /// run.
    fn run_next(&self, host: usize, term: FencingToken) -> bool {
        let mut entries = self.0.lock().expect("no job panics");
        let is_over = entries.last().is_some_and(|last| last.term > term);
        if !is_over {
            let job = entries.len();
            entries.push(Entry { host, term, job });
        }
        !is_over
    }
}

fn host(number: usize, url: &str, journal: &Journal) -> Result<(), Error> {
    let election = distlock::connect(url)?.election("example:scheduler")?;
    election.on_change(move |change| match change {
        LeadershipChange::Gained { .. } => println!("host {number} is the leader"),
        LeadershipChange::Lost { cause } => println!("host {number} is not any more: {cause}"),
        _ => println!("host {number} resigns"),
    })?;
    election.campaign()?;
    let mut done = 0;
    while done < JOBS_OF_A_HOST {
        match election.wait_for_leadership(Duration::from_secs(60), None) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(error) if error.is_unavailable() => {
                eprintln!("host {number} waits on: {error}");
                continue;
            }
            Err(error) => return Err(error),
        }
        // The term may end between the check and the job: then the journal refuses the job.
        if let (Ok(()), Some(term)) = (election.ensure(LONGEST_JOB), election.term())
            && journal.run_next(number, term)
        {
            done += 1;
        }
    }
    election.resign()
}

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://scheduler");
    let journal = Journal::default();
    thread::scope(|scope| {
        let hosts: Vec<_> = (0..HOSTS)
            .map(|number| {
                let (url, journal) = (&url, &journal);
                scope.spawn(move || host(number, url, journal))
            })
            .collect();
        hosts
            .into_iter()
            .try_for_each(|host| host.join().expect("no host panics"))
    })?;

    // The proof: each job ran once and in order, under terms that grow with each leader.
    let entries = journal.0.into_inner().expect("no job panics");
    assert!(
        entries
            .iter()
            .enumerate()
            .all(|(number, entry)| entry.job == number)
    );
    assert_eq!(entries.len(), HOSTS * JOBS_OF_A_HOST);
    for pair in entries.windows(2) {
        assert_eq!(pair[0].host == pair[1].host, pair[0].term == pair[1].term);
        assert!(pair[0].term <= pair[1].term);
    }
    println!(
        "{} jobs, each once and in order, by {HOSTS} leaders",
        entries.len()
    );
    Ok(())
}
