//! `undraft`: generate text with a hybrid model, speculate, take drafts back exactly.
//!
//! Exit codes: 0 all well, 1 a check failed, 2 bad usage or input.

#[macro_use]
mod common;
mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Exact, take-it-back speculative decoding for hybrid language models", long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate text with a model, with or without speculation.
    Generate(Box<commands::generate::Args>),
    /// Check every back end of this machine against the oracle and the golden vectors.
    Selftest(commands::selftest::Args),
    /// List back ends, instruction sets, threads and what is supported.
    Devices(commands::devices::Args),
    /// Time the kernels next to a copy of the same bytes.
    Bench(commands::bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Generate(args) => commands::generate::run(*args),
        Command::Selftest(args) => commands::selftest::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
