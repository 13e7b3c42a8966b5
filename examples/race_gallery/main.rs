//! The known races of classic lock algorithms: each happens with one format, and does not happen
//! with the format that prevents it. The clients use the formats of this library, and are paused
//! between two commands. The example starts its own `redis-server`.
//!
//! ```sh
//! cargo run --example race_gallery
//! ```

mod races;
mod stage;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut all_as_told = true;
    for (number, race) in races::all().iter().enumerate() {
        println!("{}. {}", number + 1, race.title);
        for step in race.story {
            println!("     {step}");
        }
        for (cast, is_to_happen) in [(&race.happens, true), (&race.cured, false)] {
            let seen = (race.play)(cast);
            let word = if seen {
                "it happens"
            } else {
                "it does not happen"
            };
            let note = if seen == is_to_happen {
                ""
            } else {
                "  <- NOT as told"
            };
            all_as_told &= seen == is_to_happen;
            println!("   {:45} {word}{note}", cast.told());
        }
        println!();
    }
    if all_as_told {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
