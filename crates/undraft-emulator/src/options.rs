//! What device is emulated, and in which order its threads run.

/// In which order blocks, warps and lanes take their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Rising.
    Forward,
    /// Falling.
    Reversed,
    /// Another one every time.
    Shuffled {
        /// Same seed, same orders.
        seed: u64,
    },
}

/// What lies in memory that nobody has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// NaN, of whichever element type.
    Nan,
    /// Bytes 0x3e: ordinary numbers.
    Small,
}

impl Poison {
    pub(crate) fn word(self) -> u16 {
        match self {
            Poison::Nan => 0x7fd5,
            Poison::Small => 0x3e3e,
        }
    }
}

/// One of the ways in which a launch may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Order of blocks, warps and lanes.
    pub order: Order,
    /// Whether an asynchronous copy is done where it is begun; else where it is waited for.
    pub early_copies: bool,
    /// Shared memory at the begin of a block.
    pub poison: Poison,
}

impl Schedule {
    /// Rising order, copies done where they are waited for, NaN.
    pub const FORWARD: Self = Self { order: Order::Forward, early_copies: false, poison: Poison::Nan };
    /// Falling order, copies done at once, small numbers.
    pub const REVERSED: Self = Self { order: Order::Reversed, early_copies: true, poison: Poison::Small };
    /// Shuffled order, copies done where they are waited for, small numbers.
    pub const SHUFFLED: Self = Self { order: Order::Shuffled { seed: 1 }, early_copies: false, poison: Poison::Small };
}

/// What device is emulated, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Streaming multiprocessors: with few of them the kernels' blocks have several units of work each.
    pub num_sms: usize,
    /// Bytes of shared memory that a block may have, at most 232,448.
    pub max_shared: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_sm: usize,
    /// Threads of this machine among which the blocks of a launch are shared out; at least 1.
    pub threads: usize,
    /// A launch is done under each of them, on the same memory; different results are an error. At least one.
    pub schedules: Vec<Schedule>,
    /// Kernels to run in the place of others: name, other name.
    pub substitutes: Vec<(String, String)>,
}

impl Default for Options {
    /// Shared memory of sm_80, 2 multiprocessors, one thread, [`Schedule::FORWARD`].
    fn default() -> Self {
        Self {
            num_sms: 2,
            max_shared: 166_912,
            shared_per_sm: 167_936,
            threads: 1,
            schedules: vec![Schedule::FORWARD],
            substitutes: Vec::new(),
        }
    }
}

impl Options {
    /// Forward, reversed and shuffled, early and late copies, both poisons.
    pub fn every_schedule() -> Self {
        let schedules = vec![Schedule::FORWARD, Schedule::REVERSED, Schedule::SHUFFLED];
        Self { schedules, ..Self::default() }
    }
    /// One schedule.
    pub fn with_schedule(schedule: Schedule) -> Self {
        Self { schedules: vec![schedule], ..Self::default() }
    }
}
