//! Ciphers of ESP: aws-lc on every machine, our own vector code where the CPU has the instructions.
