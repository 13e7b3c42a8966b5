//! [`Screen`]: a terminal that is drawn on again and again, and is as before when that is over.

use crate::exit::Failure;
use crate::output;
use distlock::crossbeam_channel::{Receiver, never, unbounded};
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};
use std::io::{self, IsTerminal, Read};
use std::thread;

/// The other screen of the terminal, without the cursor and without line breaks of its own.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The size of a terminal that does not know its own.
const USUAL: (usize, usize) = (80, 24);

/// The terminal of standard output, and its keys if standard input is one, too.
pub(crate) struct Screen {
    /// What standard input was before.
    before: Option<Termios>,
}

impl Screen {
    /// The terminal, if standard output is one and this process is in its foreground.
    pub(crate) fn open() -> Result<Option<Self>, Failure> {
        let is_ours = tcgetpgrp(io::stdout()).is_ok_and(|group| group == getpgrp());
        if !io::stdout().is_terminal() || !is_ours {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin()).ok();
        if let Some(mut modes) = before.clone() {
            // Keys come at once and are not shown. Ctrl-C remains a signal; Ctrl-Z would leave the
            // shell with a terminal like this.
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
            // Other values make a read without a key look like the end of the input.
            modes.special_codes[SpecialCodeIndex::VMIN] = 1;
            modes.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &modes)
                .map_err(|error| Failure::system("the terminal cannot be set", error))?;
        }
        // From now on it is set back by the drop, also if this fails.
        let screen = Self { before };
        output::write(ENTER)?;
        Ok(Some(screen))
    }

    /// The keys that are pressed.
    pub(crate) fn keys(&self) -> Receiver<u8> {
        if self.before.is_none() {
            return never();
        }
        let (sender, receiver) = unbounded();
        thread::spawn(move || {
            for key in io::stdin().lock().bytes().map_while(Result::ok) {
                if sender.send(key).is_err() {
                    return;
                }
            }
        });
        receiver
    }

    /// Columns and lines.
    pub(crate) fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => USUAL,
        }
    }

    /// Shows these lines, as far as they fit, and nothing else.
    pub(crate) fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        let (columns, rows) = Self::size();
        let fitting = lines.iter().take(rows).map(|line| {
            let line: String = output::printable(line).chars().take(columns).collect();
            line + "\x1b[K"
        });
        let text = fitting.collect::<Vec<_>>().join("\n");
        output::write(format!("\x1b[H{text}\x1b[J").as_bytes()).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _gone = output::write(LEAVE);
        if let Some(before) = &self.before {
            let _gone = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
