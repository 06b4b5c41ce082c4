// The last text of an emulated kernel; EMULATED_KERNEL is the kernel's name.
#pragma once

namespace emulator {

template <auto kernel>
struct Entry;
template <class... Parameter, void (*kernel)(Parameter...)>
struct Entry<kernel> {
  // What is longer than 8 bytes is a tensor map or a table, and the argument its address.
  static_assert(((sizeof(Parameter) >= 8) && ...), "a parameter is 8 bytes, a tensor map or a table");
  static constexpr unsigned parameters = sizeof...(Parameter);

  template <int... i>
  struct Indices {};
  // A table's bytes are no access of the kernel's.
  template <class P>
  __attribute__((no_sanitize_thread)) static P parameter(unsigned long long argument) {
    if constexpr (sizeof(P) == 8) {
      return __builtin_bit_cast(P, argument);
    } else {
      return *reinterpret_cast<const P*>(argument);
    }
  }
  template <int... i>
  __attribute__((no_sanitize_thread)) static void call(const unsigned long long* arguments, Indices<i...>) {
    kernel(parameter<Parameter>(arguments[i])...);
  }
  static void run(const unsigned long long* arguments) {
    call(arguments, Indices<__integer_pack(static_cast<int>(parameters))...>{});
  }
};

}  // namespace emulator

extern "C" __attribute__((visibility("default"))) const emulator::Exports emulated_kernel = {
    &emulator::Entry<&EMULATED_KERNEL>::run,
    emulator::Entry<&EMULATED_KERNEL>::parameters,
    &emulator::machine,
    emulator::dynamic_shared,
    __start_emulated_shared,
    __stop_emulated_shared,
    __ehdr_start,
    _end,
};
