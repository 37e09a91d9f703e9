//! Instruction sets and their tokens.

use std::fmt;

use fearless_simd::{Fallback, Level};
use undraft_core::{Error, Result};

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// No SIMD instructions are asked for; fused multiply-adds are computed exactly in software. Slow, everywhere.
    Scalar,
    /// x86-64-v3: AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 as of Ice Lake.
    Avx512,
    /// Arm NEON.
    Neon,
}

/// Proof that the CPU has an instruction set; made only by [`Token::new`].
#[derive(Clone, Copy, Debug)]
pub enum Token {
    /// Always there.
    Scalar(Fallback),
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2(fearless_simd::x86::Avx2),
    /// AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512(fearless_simd::x86::Avx512),
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(fearless_simd::aarch64::Neon),
}

impl Isa {
    /// Every instruction set, also those of other machines.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// The best one of this machine.
    pub fn best() -> Self {
        [Isa::Avx512, Isa::Avx2, Isa::Neon].into_iter().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }
    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        Token::new(self).is_ok()
    }
    /// `scalar`, `avx2`, `avx512` or `neon`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Token {
    /// Asks the CPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it does not have the instruction set.
    pub fn new(isa: Isa) -> Result<Self> {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        let level = Level::new();
        let token = match isa {
            Isa::Scalar => match Level::fallback() {
                Level::Fallback(token) => Some(Token::Scalar(token)),
                #[allow(unreachable_patterns)]
                _ => None,
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => level.as_avx2().map(Token::Avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => level.as_avx512().map(Token::Avx512),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => level.as_neon().map(Token::Neon),
            #[allow(unreachable_patterns)]
            _ => None,
        };
        token.ok_or_else(|| Error::Unsupported {
            backend: "cpu",
            what: format!("instruction set `{isa}` on this machine"),
            hint: "use `Isa::best()`, or one for which `is_available()` holds",
        })
    }
    /// Which one it proves.
    pub fn isa(self) -> Isa {
        match self {
            Token::Scalar(_) => Isa::Scalar,
            #[cfg(target_arch = "x86_64")]
            Token::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "x86_64")]
            Token::Avx512(_) => Isa::Avx512,
            #[cfg(target_arch = "aarch64")]
            Token::Neon(_) => Isa::Neon,
        }
    }
}

/// Runs `body` with `simd` bound to the token's SIMD type, compiled for that instruction set.
///
/// `body` should be one call of an `#[inline(always)]` function that is generic over [`fearless_simd::Simd`].
///
/// ```
/// use undraft_cpu::{simd, with_simd, Isa};
///
/// #[inline(always)]
/// fn dot<S: simd::Simd>(s: S, a: &[f32; 16], b: &[f32; 16]) -> f32 {
///     simd::sum(simd::fma(simd::load(s, a), simd::load(s, b), simd::zero(s)))
/// }
/// let token = simd::Token::new(Isa::best())?;
/// assert_eq!(with_simd!(token, s => dot(s, &[2.0; 16], &[0.5; 16])), 16.0);
/// # Ok::<(), undraft_core::Error>(())
/// ```
#[macro_export]
macro_rules! with_simd {
    ($token:expr, $simd:ident => $body:expr) => {
        match $token {
            $crate::simd::Token::Scalar($simd) => $body,
            token => $crate::with_vectors!(token, scalar => unreachable!("matched above"), $simd => $body),
        }
    };
}

/// [`with_simd!`](crate::with_simd) for kernels that treat the scalar token on their own: `scalar => body` comes first.
#[macro_export]
macro_rules! with_vectors {
    ($token:expr, scalar => $scalar:expr, $simd:ident => $body:expr) => {
        match $token {
            $crate::simd::Token::Scalar(_) => $scalar,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Token::Avx2($simd) => $crate::simd::Simd::vectorize(
                $simd,
                #[inline(always)]
                || $body,
            ),
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Token::Avx512($simd) => $crate::simd::Simd::vectorize(
                $simd,
                #[inline(always)]
                || $body,
            ),
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Token::Neon($simd) => $crate::simd::Simd::vectorize(
                $simd,
                #[inline(always)]
                || $body,
            ),
        }
    };
}
