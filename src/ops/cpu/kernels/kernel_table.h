#pragma once

#include "core/cpu/isa.h"

/// Declares a table of kernels that exists once per instruction set and element type: the source
/// file, compiled once per set, defines and instantiates `llmc::cpu::<isa>::getter<T>()`; ops call
/// `llmc::cpu::getter<T>(isa)`. To be used inside namespace llmc::cpu.
#define LLMC_DECLARE_KERNELS_IN(isa, Table, getter) \
  namespace isa {                                   \
  template <class T>                                \
  const Table<T>& getter();                         \
  }

#if defined(__x86_64__)
#define LLMC_DECLARE_KERNELS(Table, getter)              \
  LLMC_DECLARE_KERNELS_IN(portable, Table, getter)       \
  LLMC_DECLARE_KERNELS_IN(avx2, Table, getter)           \
  LLMC_DECLARE_KERNELS_IN(avx512, Table, getter)         \
  template <class T>                                     \
  const Table<T>& getter(Isa isa) {                      \
    if (isa == Isa::kAvx512) return avx512::getter<T>(); \
    if (isa == Isa::kAvx2) return avx2::getter<T>();     \
    return portable::getter<T>();                        \
  }                                                      \
  static_assert(true, "a semicolon follows the macro")
#else
#define LLMC_DECLARE_KERNELS(Table, getter)        \
  LLMC_DECLARE_KERNELS_IN(portable, Table, getter) \
  template <class T>                               \
  const Table<T>& getter(Isa) {                    \
    return portable::getter<T>();                  \
  }                                                \
  static_assert(true, "a semicolon follows the macro")
#endif
