//! Tests that need a real Redis server, because they check what is sent and what is stored.

mod classic_late_release;
mod classic_leftovers;
mod classic_settings;
mod clients;
mod credentials;
mod foreign_clients;
mod foreign_data;
mod foreign_signals;
mod formats;
mod full_memory;
mod full_scripts;
mod handoff;
mod hanging_files;
mod joined;
mod labels;
mod one_store;
mod publish_rights;
mod replication;
mod requests;
mod tracking;
