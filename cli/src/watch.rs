//! `watch`: shows the state of locks repeatedly.

use crate::arguments::{Limit, WatchArguments};
use crate::exit::{self, Failure};
use crate::output;
use crate::rows::{self, Found, ReaderRows, Row};
use crate::screen::Screen;
use crate::signals::{self, Signals};
use crate::store::Clients;
use distlock::crossbeam_channel::{Receiver, Sender, after, bounded, never, select, tick};
use distlock::time::{Clock, SystemClock};
use distlock::{Interrupt, LockName};
use std::thread;
use std::time::Duration;

/// The interval at which a change of the window's size is detected.
const RESIZED: Duration = Duration::from_millis(250);

/// The locks to show.
pub(crate) enum Watched {
    Pattern(String),
    Names(Vec<LockName>),
}

impl Watched {
    pub(crate) fn read(words: &[String], slots: bool) -> Result<Self, Failure> {
        let is_pattern = |word: &String| word.contains(['*', '?', '[']);
        if slots && (words.is_empty() || words.iter().any(is_pattern)) {
            let what = "--slots needs names: semaphores are not listed";
            return Err(Failure::new(exit::USAGE, what));
        }
        match words {
            [] => Ok(Self::Pattern("*".to_owned())),
            [word] if is_pattern(word) => Ok(Self::Pattern(word.clone())),
            words if words.iter().any(is_pattern) => {
                let what = "a pattern stands alone: give one pattern, or names without *, ? and [";
                Err(Failure::new(exit::USAGE, what))
            }
            words => Ok(Self::Names(rows::names(words, slots)?)),
        }
    }

    pub(crate) fn ask(&self, clients: &Clients, limit: &Limit) -> Result<Found, Failure> {
        match self {
            Self::Names(names) => Ok(Found {
                rows: rows::of_names(clients, names)?,
                ..Found::default()
            }),
            Self::Pattern(pattern) => {
                let mut found = Found::default();
                rows::find(clients, pattern, limit, &mut found).map(|()| found)
            }
        }
    }
}

/// Shows the locks until the user ends the program, the last round is over, or the first round
/// fails.
pub(crate) fn watch(arguments: WatchArguments) -> Result<u8, Failure> {
    let heard = Signals::block_all()?.listen(&Interrupt::new());
    let watched = Watched::read(&arguments.words, arguments.slots)?;
    let clients = arguments.store.clients()?;
    let WatchArguments {
        limit,
        interval,
        count,
        json,
        ..
    } = arguments;
    let (ask, rounds) = rounds(move || watched.ask(&clients, &limit));
    let screen = if json { None } else { Screen::open()? };
    let mut keys = screen.as_ref().map_or_else(never, Screen::keys);
    let resized = if screen.is_some() {
        tick(RESIZED)
    } else {
        never()
    };
    let mut view = View {
        screen,
        json,
        interval,
        round: 0,
        found: Found::default(),
        error: None,
    };
    let (mut size, mut began) = (Screen::size(), SystemClock.now());
    let mut next = after(Duration::ZERO);
    loop {
        select! {
            recv(next) -> _ => {
                began = SystemClock.now();
                next = never();
                // If the thread has ended by a panic, this fails. Then `rounds` is closed, and the
                // next iteration reports the panic.
                let _ended = ask.send(());
            }
            recv(rounds) -> round => {
                let round = round.map_err(|_| Failure::system("watch", "a round has panicked"))?;
                let failed = view.show(round)?;
                if count.is_some_and(|count| view.round >= count) {
                    return failed.map_or(Ok(0), Err);
                }
                next = after(interval.saturating_sub(SystemClock.now().since(began)));
            }
            recv(heard) -> signal => match signal {
                Ok(signal) if signals::ends(signal) => return Ok(exit::of_signal(signal)),
                _ => {}
            },
            recv(keys) -> key => match key {
                Ok(b'q') => return Ok(0),
                Ok(_) => {}
                // Standard input has ended. Its closed channel would be ready all the time.
                Err(_) => keys = never(),
            },
            recv(resized) -> _ => if Screen::size() != size {
                size = Screen::size();
                view.draw()?;
            },
        }
    }
}

/// Calls `ask` on a separate thread, once for each message, so that a slow store delays no key and
/// no signal.
fn rounds<T: Send + 'static>(ask: impl Fn() -> T + Send + 'static) -> (Sender<()>, Receiver<T>) {
    let ((order, orders), (sender, receiver)) = (bounded(1), bounded(1));
    thread::spawn(move || while orders.recv().is_ok() && sender.send(ask()).is_ok() {});
    (order, receiver)
}

/// The output, with the result of the last round.
struct View {
    screen: Option<Screen>,
    json: bool,
    interval: Duration,
    round: u64,
    found: Found,
    /// The failure of the last round. Then `found` is the result of an earlier round.
    error: Option<String>,
}

impl View {
    /// Shows the result of a round, and returns its failure. Fails if the first round has failed.
    fn show(&mut self, round: Result<Found, Failure>) -> Result<Option<Failure>, Failure> {
        self.round += 1;
        let failed = match round {
            Ok(found) => {
                self.found = found;
                None
            }
            Err(failure) if self.round == 1 => return Err(failure),
            Err(failure) => Some(failure),
        };
        self.error = failed.as_ref().map(Failure::to_string);
        if self.screen.is_some() {
            self.draw()?;
        } else if let Some(failure) = &failed {
            output::report(failure);
        } else {
            self.print()?;
        }
        Ok(failed)
    }

    /// Prints a round.
    fn print(&self) -> Result<u8, Failure> {
        let Found { rows, is_cut } = &self.found;
        if self.json {
            let locks: Vec<_> = rows.iter().map(Row::json).collect();
            let (round, locks) = (self.round, locks.join(","));
            return output::line(&format!(
                r#"{{"round":{round},"locks":[{locks}],"complete":{}}}"#,
                !is_cut
            ));
        }
        let apart = if self.round > 1 { "\n" } else { "" };
        output::line(&format!("{apart}{}", rows::table(rows, ReaderRows::Last)))
    }

    /// Draws the last round: a line about it, and as many rows as fit.
    fn draw(&self) -> Result<(), Failure> {
        let Some(screen) = &self.screen else {
            return Ok(());
        };
        let Found { rows, is_cut } = &self.found;
        let held = rows.iter().filter(|row| row.is_held()).count();
        let more = if *is_cut { "+" } else { "" };
        let about = match &self.error {
            Some(error) => format!("NOT CURRENT: {error}"),
            None => {
                let every = self.interval.as_secs_f64();
                format!(
                    "{held}{more} held, every {every} s, round {}; q ends",
                    self.round
                )
            }
        };
        let (_, height) = Screen::size();
        let table = rows::table(rows, ReaderRows::Last);
        let mut lines: Vec<_> = [about]
            .into_iter()
            .chain(table.lines().map(str::to_owned))
            .collect();
        if lines.len() > height {
            // The last line, which replaces one row, counts the rows that do not fit.
            let hidden = lines.len() + 1 - height;
            lines.truncate(height - 1);
            lines.push(format!(".. and {hidden} more"));
        }
        screen.draw(&lines)
    }
}
