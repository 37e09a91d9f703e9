//! Encoders and submitted work that end themselves.

use std::sync::Arc;

use super::{CommandsHandle, Driver, EncoderHandle};
use crate::error::Result;

/// An open encoder. Dropped, it hands over what it holds and waits, as [`Commands::finish`] does.
#[derive(Debug)]
pub struct Commands {
    driver: Arc<dyn Driver>,
    encoder: Option<EncoderHandle>,
}

impl Commands {
    /// Opens one.
    ///
    /// # Errors
    /// If the device fails.
    pub fn begin(driver: &Arc<dyn Driver>) -> Result<Self> {
        Ok(Self { driver: driver.clone(), encoder: Some(driver.begin()?) })
    }
    /// What launches of [`crate::raw`] take; `None` is impossible before the value is used up.
    pub fn encoder(&self) -> EncoderHandle {
        self.encoder.unwrap_or(EncoderHandle(0))
    }
    /// Hands the work to the device and returns at once.
    ///
    /// # Errors
    /// If the device fails.
    pub fn commit(mut self) -> Result<Submitted> {
        let commands = self.end().transpose()?;
        Ok(Submitted { driver: self.driver.clone(), commands })
    }
    /// Hands the work to the device and waits until it is done.
    ///
    /// # Errors
    /// If the device or the work fails.
    pub fn finish(self) -> Result<()> {
        self.commit()?.wait()
    }

    fn end(&mut self) -> Option<Result<CommandsHandle>> {
        // SAFETY: opened by `begin`, taken here alone.
        self.encoder.take().map(|encoder| unsafe { self.driver.commit(encoder) })
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        if let Some(Ok(commands)) = self.end() {
            drop(Submitted { driver: self.driver.clone(), commands: Some(commands) });
        }
    }
}

/// Work on its way. Dropped, it is waited for.
#[derive(Debug)]
pub struct Submitted {
    driver: Arc<dyn Driver>,
    commands: Option<CommandsHandle>,
}

impl Submitted {
    /// Waits until the work is done.
    ///
    /// # Errors
    /// If the work failed.
    pub fn wait(mut self) -> Result<()> {
        self.end()
    }
    fn end(&mut self) -> Result<()> {
        match self.commands.take() {
            // SAFETY: from `commit`, taken here alone.
            Some(commands) => unsafe { self.driver.wait(commands) },
            None => Ok(()),
        }
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
