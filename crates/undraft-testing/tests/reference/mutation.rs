//! The mistakes that the suite must see.

use undraft_testing::Op;

/// Mistakes, and the list of them.
macro_rules! mutations {
    ($($name:ident)*) => {
        /// One mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation {
            $($name,)*
        }

        impl Mutation {
            pub const ALL: &[Mutation] = &[$(Mutation::$name,)*];
        }
    };
}

mutations! {
    NoDecay
    DecayOfNextHead
    NegLogTakenAsLog
    DeltaBeforeDecay
    OutputBeforeUpdate
    HeadMapSwapped
    BetaDropped
    BetaLogitTakenAsValue
    ScaleDropped
    NormOverMean
    NormOutsideRoot
    NormIgnored
    RoundingIgnored
    CaptureBeforeUpdate
    WrongSlot
    StateWrittenInLogMode
    PendingIgnored
    PendingReplayedBackwards
    PendingNotStored
    LogHoldsBetaTimesV
    LogEntriesShifted
    PadOutputLeft
    PadTreatedAsSlotZero
    EmptySequenceZeroesState
    GuardWritten
    ForeignSlotCleared
    LaterTokenSeen
    TreeTakenAsChain
    TreeParentOffByOne
    TreeRootFollowsLastToken
    TreeSiblingsShareState
    PathIgnored
    PathBackwards
    PathOfFirstSequence
    StateRoundedAtTheEnd
    StateRoundedTowardsZero
    StateRoundedTiesUp
    StateSaturates
    StateSubnormalsFlushed
    OutputAfterRounding
    ReplayRoundedAtTheEnd
    DecayOfNextChannel
    DecayOfFirstChannel
    BiasOfHeadForChannel
    DependsOnBatch
    DependsOnWindow
    DependsOnAlignment
    ChunkLosesLongPrompts
    ChunkIgnoresState
    ChunkCheckpointsEarly
    ConvTapsShifted
    ConvTapsReversed
    ConvBiasDropped
    ConvNoActivation
    ConvStateAfterActivation
    ConvLogKeptShort
    ConvPendingIgnored
    ConvPathIgnored
    ConvTreeTakenAsChain
    ConvTreeForgetsState
    ConvTreeParentOffByOne
    ConvFnStateKept
    ConvFnStateIgnored
    ConvFnLastTapDropped
    CommitWithoutFma
    CommitAllTokens
    CommitPathIgnored
    CommitRoundedAtTheEnd
    CommitDecayOfFirstChannel
    GateWithoutBias
    GateUnderflows
    GateSwapsAAndB
    GateHeadZeroOnly
    GateBiasOfHeadForChannel
    GateBetaOfNextHead
    NormGateFirst
    NormSiluAlways
    NormWeightPlusOne
    NormRowsCoupled
    RefusesWhatItSupports
    IgnoresRefusal
}

impl Mutation {
    /// The operations whose suites must see it.
    pub fn ops(self) -> &'static [Op] {
        let name = format!("{self:?}");
        let starts = |prefix: &str| name.starts_with(prefix);
        match () {
            () if starts("Gate") => &[Op::FusedGdnGating],
            () if starts("ConvFn") => &[Op::CausalConv1dFn],
            () if starts("Conv") => &[Op::CausalConv1dUpdate],
            () if starts("Chunk") => &[Op::ChunkGatedDeltaRule],
            () if starts("Commit") => &[Op::CommitStates],
            () if starts("Norm") && !["NormOverMean", "NormOutsideRoot", "NormIgnored"].contains(&&*name) => {
                &[Op::RmsNormGated]
            }
            () => &[Op::FusedRecurrentGatedDeltaRule],
        }
    }
}
