//! Random paths through the model of the quorum, replayed on real nodes: the scripts on a server,
//! and the in-memory store. Step by step, they must give the same answers as the model's node, and
//! store the same.

use distlock_model::node::{Answer, Node, Request, Rules, View};
use distlock_model::quorum::{Event, Outsider, Quorum, SERVERS};
use distlock_model::walk::Walk;
use in_memory::InMemory;
use scripted::{Scripted, Scripts};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::thread;

mod in_memory;
mod scripted;

/// The name of the lock.
const LOCK: &str = "a";

/// A real node.
trait Real {
    /// Forgets everything, and begins with this counter: as a member of the first membership if
    /// `is_node`, otherwise without a marker.
    fn begin(&mut self, counter: u8, is_node: bool);
    fn ask(&mut self, request: Request) -> Answer;
    fn let_go(&mut self);
    fn tick(&mut self, now: u8);
    fn restart(&mut self);
    fn save(&mut self);
    /// Returns the owner that holds the lock.
    fn holder(&mut self) -> Option<u8>;
    /// Returns the stored token, if there is one; the outer `None` if it cannot be read.
    fn counter(&mut self) -> Option<Option<u8>>;
}

/// Replays so many paths. Returns how often each answer was given, or the first difference.
fn replay<R: Real>(
    model: &Quorum,
    ways: u64,
    steps: usize,
    nodes: &mut [R],
) -> Result<BTreeMap<String, u32>, String> {
    let mut answers = BTreeMap::new();
    for seed in 0..ways {
        let mut walk = Walk::new(model, seed);
        for (real, column) in nodes.iter_mut().zip(&walk.state().columns) {
            let counter = column.node.disk.counter.map_or(0, |counter| counter.value);
            real.begin(counter, column.node.disk.marker.is_some());
        }
        for step in 0..steps {
            let Some((action, event)) = walk.step() else {
                break;
            };
            let Some((at, event)) = event else { continue };
            let node = walk.state().columns[at].node;
            follow(&model.rules, event, node, &mut nodes[at])
                .map_err(|why| format!("way {seed}, step {step}, {action:?}: {why}"))?;
            if let Event::Asked(_, answer) = event {
                let name = format!("{answer:?}");
                let name = name.split('(').next().unwrap_or_default();
                *answers.entry(name.to_owned()).or_insert(0) += 1;
            }
        }
        *answers.entry("holder".to_owned()).or_insert(0) += u32::from(walk.state().was_won());
    }
    Ok(answers)
}

/// Takes the same step on a real node, and compares answer, holder and counter with the model's.
fn follow(rules: &Rules, event: Event, node: Node, real: &mut impl Real) -> Result<(), String> {
    match event {
        Event::Asked(request, answer) => {
            same(&format!("{request:?}"), real.ask(request), answer)?;
        }
        Event::LetGo => real.let_go(),
        Event::Tick => {
            real.tick(node.now);
            if node.disk.marker.is_some() {
                once_more(rules, look(node.run), node, real)?;
            }
        }
        Event::Saved => real.save(),
        Event::Restarted => {
            real.restart();
            // Requests that were meant for the server before its restart must change nothing.
            let run = node.run - 1;
            once_more(rules, admit(run, View::FIRST), node, real)?;
            let view = node.view();
            let late = Request::Propose {
                owner: 0,
                first: 1,
                last: 1,
                run,
                view,
            };
            once_more(rules, late, node, real)?;
        }
    }
    if let Some(marker) = node.disk.marker {
        // Requests of clients that know older members, or another quorum, must change nothing.
        let View { quorum, epoch } = marker.view;
        for view in [
            View {
                quorum,
                epoch: epoch - 1,
            },
            View {
                quorum: quorum + 1,
                epoch,
            },
        ] {
            let late = Request::Propose {
                owner: 0,
                first: 1,
                last: 1,
                run: node.run,
                view,
            };
            once_more(rules, late, node, real)?;
        }
        for view in [
            View {
                quorum,
                epoch: epoch - 1,
            },
            View {
                quorum: quorum + 1,
                epoch: epoch + 1,
            },
        ] {
            once_more(rules, admit(node.run, view), node, real)?;
        }
    } else if rules.longest.is_some() {
        once_more(rules, look(node.run), node, real)?;
    }
    same("the holder", real.holder(), node.disk.lock)?;
    let counter = real
        .counter()
        .map_or(Ok(()), |it| same("counter", it, node.stored(rules)));
    counter.map_err(|why| format!("{why}; it is {node:?}"))
}

/// Returns a request to record the first membership, which every node has recorded.
fn look(run: u8) -> Request {
    Request::Mark {
        run,
        view: View::FIRST,
        is_admitted: false,
        not_before: 0,
    }
}

/// Returns a request to become a node under this view.
fn admit(run: u8, view: View) -> Request {
    Request::Mark {
        run,
        view,
        is_admitted: true,
        not_before: 0,
    }
}

/// Sends a request that changes nothing, and compares the answer with the model's.
fn once_more(
    rules: &Rules,
    request: Request,
    mut node: Node,
    real: &mut impl Real,
) -> Result<(), String> {
    same(
        &format!("{request:?}"),
        real.ask(request),
        node.step(rules, request),
    )
}

fn same<T: PartialEq + Debug>(what: &str, real: T, expected: T) -> Result<(), String> {
    if real == expected {
        return Ok(());
    }
    Err(format!("{what}: {real:?}, and not {expected:?}"))
}

/// Replays paths without a difference, and checks that locks were won and every answer was given
/// often enough.
fn agree<R: Real>(model: &Quorum, ways: u32, steps: usize, nodes: &mut [R]) {
    let answers = replay(model, ways.into(), steps, nodes).unwrap_or_else(|why| panic!("{why}"));
    println!("{ways} ways: {answers:?}");
    assert!(answers["holder"] > ways / 10, "{answers:?}");
    assert!(answers.values().all(|times| *times > 2), "{answers:?}");
}

fn scripted(model: &Quorum, scripts: &Scripts) -> [Scripted; SERVERS] {
    std::array::from_fn(|_| Scripted::start(model.rules, scripts.clone()))
}

#[test]
fn scripts_answer_like_the_model() {
    let model = Quorum::everything();
    agree(&model, 25, 120, &mut scripted(&model, &Scripts::real()));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn scripts_answer_like_the_model_in_a_long_run() {
    let model = Quorum::everything();
    agree(&model, 300, 80, &mut scripted(&model, &Scripts::real()));
}

#[test]
fn scripts_without_a_marker_answer_like_the_model() {
    let model = Quorum::without_time();
    agree(&model, 20, 60, &mut scripted(&model, &Scripts::real()));
}

#[test]
fn memory_store_answers_like_the_model() {
    let model = Quorum::without_time();
    agree(
        &model,
        1_000,
        100,
        &mut [InMemory::new(), InMemory::new(), InMemory::new()],
    );
}

/// Wrong changes of the scripts: a part of a line, and what replaces it.
const WRONG: &[(&str, &str)] = &[
    // propose.lua
    ("tonumber(ARGV[5]) <= value", "tonumber(ARGV[5]) < value"),
    (
        "if not stored or tonumber(stored) < last then",
        "if true then",
    ),
    (
        "local last = tonumber(ARGV[6])",
        "local last = tonumber(ARGV[5])",
    ),
    ("if now < since then", "if false then"),
    ("if since > floor then", "if false then"),
    ("ahead > ARGV[7] * 1000", "false"),
    (
        "math.max(tonumber(stored) or 0, floor)",
        "tonumber(stored) or 0",
    ),
    ("EXISTS', KEYS[3], KEYS[1])", "EXISTS', KEYS[1])"),
    ("if server ~= ARGV[8] then", "if false then"),
    ("if marker[1] ~= server then", "if false then"),
    ("marker[3] = now + marker[2] * 1000", "marker[3] = now"),
    ("ARGV[14] ~= '1' and", ""),
    ("ARGV[14] ~= '1' and", "false and"),
    (
        "look(redis.call, KEYS[1], ARGV[2]) == 0",
        "look(redis.call, KEYS[1], ARGV[2]) == 2",
    ),
    ("marker[5] ~= ARGV[11]", "false"),
    ("marker[6] ~= ARGV[12]", "false"),
    // mark.lua
    ("or ARGV[1] ~= server then", "then"),
    ("+ ARGV[8] * 1000", ""),
    ("math.max(now, tonumber(ARGV[9]))", "now"),
    ("tonumber(ARGV[4]) > tonumber(epoch)", "true"),
    ("quorum == ARGV[3] and tonumber", "tonumber"),
    ("and version == ARGV[10]", ""),
    ("ARGV[8] ~= '' and", ""),
    // close.lua
    ("if ARGV[6] ~= '0' then", "if false then"),
    (
        "if look(redis.call, KEYS[1], ARGV[1]) == 0 then",
        "if false then",
    ),
    ("if ARGV[4] ~= '' then", "if false then"),
    (
        "if redis.call('GET', KEYS[2]) == ARGV[5] then",
        "if true then",
    ),
];

#[test]
fn script_without_one_rule_is_found_out() {
    // Several changes are tested at a time, because restarts of servers take most of the time.
    const AT_A_TIME: usize = 4;
    // A node must vote again even if its token is larger than the majority's. The second model
    // makes that frequent, because little else happens in it.
    let models = &[
        Quorum {
            skew: 3,
            ..Quorum::everything()
        },
        Quorum {
            skew: 3,
            outsider: Outsider::None,
            restarts: 0,
            saves: false,
            ..Quorum::everything()
        },
    ];
    let missed: Vec<_> = thread::scope(|scope| {
        let parts = WRONG.chunks(WRONG.len().div_ceil(AT_A_TIME));
        let parts: Vec<_> = parts
            .map(|part| scope.spawn(|| missed(models, part)))
            .collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap())
            .collect()
    });
    assert!(missed.is_empty(), "not found out: {missed:?}");
}

/// Returns those of the changes that no replay detects.
fn missed<'a>(models: &[Quorum], changes: &'a [(&'a str, &'a str)]) -> Vec<&'a str> {
    let mut nodes = scripted(&models[0], &Scripts::real());
    let mut missed = Vec::new();
    for (right, wrong) in changes {
        let mut scripts = Scripts::real();
        let Scripts {
            propose,
            close,
            mark,
        } = &mut scripts;
        let script = [propose, close, mark]
            .into_iter()
            .find(|script| script.contains(right));
        let script = script.unwrap_or_else(|| panic!("no script has the line `{right}`"));
        *script = script.replacen(right, wrong, 1);
        nodes
            .iter_mut()
            .for_each(|node| node.scripts = scripts.clone());
        match models
            .iter()
            .find_map(|model| replay(model, 100, 80, &mut nodes).err())
        {
            None => missed.push(*right),
            Some(why) => println!("`{right}` as `{wrong}`: {why}"),
        }
    }
    missed
}
