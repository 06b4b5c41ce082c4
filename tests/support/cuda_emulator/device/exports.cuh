// The last text of an emulated kernel; EMULATED_KERNEL is the kernel's name.
#pragma once

namespace emulator {

template <auto kernel>
struct Entry;
template <class... Parameter, void (*kernel)(Parameter...)>
struct Entry<kernel> {
  static_assert(((sizeof(Parameter) == 8) && ...), "a kernel's parameters are 8 bytes each");
  static constexpr unsigned parameters = sizeof...(Parameter);

  template <int... i>
  struct Indices {};
  template <int... i>
  static void call(const unsigned long long* arguments, Indices<i...>) {
    kernel(__builtin_bit_cast(Parameter, arguments[i])...);
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
