#include "models/weights/unpickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "ir/error.h"

namespace difuse::models {
namespace {

using PickledKind = PickledValue::Kind;
using runtime::TensorDType;

constexpr size_t kMaxRank = 64, kMaxKey = 256;

enum class Global : uint8_t { ordered_dict, rebuild_tensor, rebuild_parameter, size, storage };

struct StorageRow {
  std::string_view name;
  TensorDType dtype;
};

constexpr std::array kStorages = {
    StorageRow{"FloatStorage", TensorDType::f32}, StorageRow{"DoubleStorage", TensorDType::f64},
    StorageRow{"HalfStorage", TensorDType::f16},  StorageRow{"BFloat16Storage", TensorDType::bf16},
    StorageRow{"LongStorage", TensorDType::i64},  StorageRow{"IntStorage", TensorDType::i32},
    StorageRow{"ShortStorage", TensorDType::i16}, StorageRow{"CharStorage", TensorDType::i8},
    StorageRow{"ByteStorage", TensorDType::u8},   StorageRow{"BoolStorage", TensorDType::boolean},
};

std::optional<TensorDType> storage_dtype(std::string_view global) {
  if (!global.starts_with("torch.")) return std::nullopt;
  const auto* row = std::ranges::find(kStorages, global.substr(6), &StorageRow::name);
  return row == kStorages.end() ? std::nullopt : std::optional(row->dtype);
}

std::optional<Global> find_global(std::string_view name) {
  if (name == "collections.OrderedDict") return Global::ordered_dict;
  if (name == "torch._utils._rebuild_tensor_v2") return Global::rebuild_tensor;
  if (name == "torch._utils._rebuild_parameter") return Global::rebuild_parameter;
  if (name == "torch.Size") return Global::size;
  if (storage_dtype(name)) return Global::storage;
  return std::nullopt;
}

}  // namespace

/// The machine: a stack, whose marks begin the operands of variadic opcodes, and a memo.
class PickleMachine {
 public:
  PickleMachine(const std::filesystem::path& path, std::span<const std::byte> bytes, Pickle& pickle)
      : path_(path), bytes_(bytes), values_(pickle.values_) {}

  const PickledValue* run();

 private:
  using Stack = std::vector<PickledValue*>;

  [[noreturn]] void broken(std::string_view what) const {
    throw Error(fmt::format("'{}' is a broken pickle: {} (byte {})", path_.string(), what, at_),
                "copy or download the file again");
  }

  // What the program is made of.

  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size() - at_) broken("it is cut off");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text(uint64_t count) {
    const auto part = take(count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::string line() {
    const auto rest = bytes_.subspan(at_);
    const auto end = std::ranges::find(rest, std::byte{'\n'});
    if (end == rest.end()) broken("it is cut off");
    const auto length = static_cast<uint64_t>(end - rest.begin());
    std::string result = text(length);
    ++at_;
    return result;
  }
  /// Two's complement of any width; what does not fit 64 bits is no size or index.
  int64_t long_integer(uint64_t count) {
    if (count > 8) broken("a whole number of more than 64 bits");
    const auto part = take(count);
    uint64_t value = 0;
    for (size_t i = 0; i < part.size(); ++i) value |= std::to_integer<uint64_t>(part[i]) << (8 * i);
    if (count > 0 && count < 8 && (part.back() & std::byte{0x80}) != std::byte{}) value |= ~uint64_t{0} << (8 * count);
    return static_cast<int64_t>(value);
  }

  // The stack.

  PickledValue& make(PickledKind kind) {
    values_.emplace_back().kind = kind;
    return values_.back();
  }
  PickledValue& push(PickledKind kind) {
    PickledValue& value = make(kind);
    stack_.push_back(&value);
    return value;
  }
  void push_integer(PickledKind kind, int64_t value) { push(kind).integer = value; }
  void push_text(std::string value) { push(PickledKind::text).text = std::move(value); }
  PickledValue* pop() {
    if (stack_.size() <= floor()) broken("it takes a value that is not there");
    PickledValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickledValue* top(PickledKind kind, const char* what) {
    if (stack_.size() <= floor() || stack_.back()->kind != kind) broken(what);
    return stack_.back();
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Stack pop_to_mark() {
    if (marks_.empty()) broken("it takes a mark that is not there");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    Stack values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  void push_sequence(const Stack& items) { push(PickledKind::sequence).items.assign(items.begin(), items.end()); }
  void push_tuple(size_t count) {
    Stack items;
    for (size_t i = 0; i < count; ++i) items.push_back(pop());
    std::ranges::reverse(items);
    push_sequence(items);
  }
  void memoize(uint64_t index) {
    if (stack_.size() <= floor()) broken("it remembers a value that is not there");
    memo_[index] = stack_.back();
  }
  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) broken("it recalls what it has not remembered");
    stack_.push_back(found->second);
  }
  void set_items(const Stack& items) {
    PickledValue* dictionary = top(PickledKind::dictionary, "it sets items of what is no dictionary");
    if (items.size() % 2 != 0) broken("a key without a value");
    for (size_t i = 0; i < items.size(); i += 2) dictionary->pairs.emplace_back(items[i], items[i + 1]);
  }
  void append(const Stack& items) {
    PickledValue* list = top(PickledKind::sequence, "it appends to what is no list");
    list->items.insert(list->items.end(), items.begin(), items.end());
  }

  // What Python would call.

  void push_global(const std::string& module, const std::string& name) {
    const std::string full = module + "." + name;
    if (!find_global(full)) {
      throw Error(fmt::format("'{}' wants to run code: its pickle asks for the global '{}'; nothing of it was run",
                              path_.string(), full),
                  "do not load this file elsewhere either, unless you trust who made it; save the model's state_dict() "
                  "alone, or as safetensors");
    }
    push(PickledKind::global).text = full;
  }
  void stack_global() {
    const PickledValue *name = pop(), *module = pop();
    if (name->kind != PickledKind::text || module->kind != PickledKind::text) broken("a global without a name");
    push_global(module->text, name->text);
  }
  PickledValue& argument(const PickledValue& arguments, size_t i, PickledKind kind) const {
    if (i >= arguments.items.size() || arguments.items[i]->kind != kind) broken("a call with the wrong arguments");
    return *arguments.items[i];
  }
  std::vector<int64_t> integers(const PickledValue& sequence) const {
    if (sequence.items.size() > kMaxRank) broken(fmt::format("a tensor of {} dimensions", sequence.items.size()));
    std::vector<int64_t> result;
    for (const PickledValue* item : sequence.items) {
      if (item->kind != PickledKind::integer) broken("a size that is not a whole number");
      result.push_back(item->integer);
    }
    return result;
  }
  void reduce();
  void push_storage();
  void build();
  bool step(uint8_t opcode);

  const std::filesystem::path& path_;
  std::span<const std::byte> bytes_;
  std::deque<PickledValue>& values_;
  uint64_t at_ = 0;
  uint64_t copied_ = 0;  // Values copied by calls: a memo makes it cheap to ask for one copy after another.
  Stack stack_;
  std::vector<size_t> marks_;
  std::map<uint64_t, PickledValue*> memo_;
};

void PickleMachine::reduce() {
  const PickledValue* arguments = pop();
  const PickledValue* function = pop();
  if (function->kind != PickledKind::global || arguments->kind != PickledKind::sequence)
    broken("a call of what is no function");
  switch (find_global(function->text).value()) {
    case Global::ordered_dict: {
      PickledValue& dictionary = make(PickledKind::dictionary);
      if (!arguments->items.empty()) {  // A list of pairs, as Python 2 wrote it.
        const auto& pairs = argument(*arguments, 0, PickledKind::sequence).items;
        copied_ += pairs.size();
        if (copied_ > bytes_.size()) broken("it copies more than it holds");
        for (const PickledValue* pair : pairs) {
          if (pair->kind != PickledKind::sequence || pair->items.size() != 2)
            broken("a dictionary of what are no pairs");
          dictionary.pairs.emplace_back(pair->items[0], pair->items[1]);
        }
      }
      stack_.push_back(&dictionary);
      return;
    }
    case Global::rebuild_tensor: {
      PickledTensor tensor;
      tensor.storage = argument(*arguments, 0, PickledKind::storage).storage;
      tensor.offset = argument(*arguments, 1, PickledKind::integer).integer;
      tensor.shape = integers(argument(*arguments, 2, PickledKind::sequence));
      tensor.strides = integers(argument(*arguments, 3, PickledKind::sequence));
      push(PickledKind::tensor).tensor = std::move(tensor);
      return;
    }
    case Global::rebuild_parameter:
      push(PickledKind::tensor).tensor = argument(*arguments, 0, PickledKind::tensor).tensor;
      return;
    case Global::size:
      stack_.push_back(&argument(*arguments, 0, PickledKind::sequence));
      return;
    case Global::storage:
      broken("a call of a storage");
  }
}

/// ("storage", its type, the key, the device, the number of elements)
void PickleMachine::push_storage() {
  const PickledValue* id = pop();
  if (id->kind != PickledKind::sequence || argument(*id, 0, PickledKind::text).text != "storage") {
    broken("a persistent id that is no storage");
  }
  const std::optional<TensorDType> dtype = storage_dtype(argument(*id, 1, PickledKind::global).text);
  if (!dtype) broken("a storage of what is no type");
  PickledStorage storage{*dtype, argument(*id, 2, PickledKind::text).text,
                         argument(*id, 4, PickledKind::integer).integer};
  if (storage.key.size() > kMaxKey) broken("a storage with an endless name");
  push(PickledKind::storage).storage = std::move(storage);
}

/// The attributes of an object: state_dict() has "_metadata", which says nothing about tensors.
void PickleMachine::build() {
  pop();
  top(PickledKind::dictionary, "it gives attributes to what is no dictionary");
}

/// False at the end of the program.
bool PickleMachine::step(uint8_t opcode) {
  switch (opcode) {
    case 0x80:  // PROTO
      if (number<uint8_t>() > 5) broken("its protocol is newer than 5");
      return true;
    case 0x95:  // FRAME
      take(8);
      return true;
    case '.':  // STOP
      return false;
    case '(':  // MARK
      marks_.push_back(stack_.size());
      return true;
    case '0':  // POP
      pop();
      return true;
    case '1':  // POP_MARK
      pop_to_mark();
      return true;
    case '2':  // DUP
      stack_.push_back(pop());
      stack_.push_back(stack_.back());
      return true;

    case 'N':
      push(PickledKind::none);
      return true;
    case 0x88:  // NEWTRUE
      push_integer(PickledKind::boolean, 1);
      return true;
    case 0x89:  // NEWFALSE
      push_integer(PickledKind::boolean, 0);
      return true;
    case 'J':  // BININT
      push_integer(PickledKind::integer, number<int32_t>());
      return true;
    case 'K':  // BININT1
      push_integer(PickledKind::integer, number<uint8_t>());
      return true;
    case 'M':  // BININT2
      push_integer(PickledKind::integer, number<uint16_t>());
      return true;
    case 0x8a:  // LONG1
      push_integer(PickledKind::integer, long_integer(number<uint8_t>()));
      return true;
    case 'G': {  // BINFLOAT, big-endian
      const auto bits = __builtin_bswap64(number<uint64_t>());
      push(PickledKind::real).real = std::bit_cast<double>(bits);
      return true;
    }
    case 'X':  // BINUNICODE
    case 'T':  // BINSTRING
    case 'B':  // BINBYTES
      push_text(text(number<uint32_t>()));
      return true;
    case 0x8c:  // SHORT_BINUNICODE
    case 'U':   // SHORT_BINSTRING
    case 'C':   // SHORT_BINBYTES
      push_text(text(number<uint8_t>()));
      return true;
    case 0x8d:  // BINUNICODE8
      push_text(text(number<uint64_t>()));
      return true;

    case ')':   // EMPTY_TUPLE
    case ']':   // EMPTY_LIST
    case 0x8f:  // EMPTY_SET
      push(PickledKind::sequence);
      return true;
    case 't':  // TUPLE
    case 'l':  // LIST
      push_sequence(pop_to_mark());
      return true;
    case 0x85:  // TUPLE1
    case 0x86:  // TUPLE2
    case 0x87:  // TUPLE3
      push_tuple(size_t{opcode} - 0x84);
      return true;
    case 'a': {  // APPEND
      PickledValue* item = pop();
      append({item});
      return true;
    }
    case 'e':   // APPENDS
    case 0x90:  // ADDITEMS
      append(pop_to_mark());
      return true;
    case '}':  // EMPTY_DICT
      push(PickledKind::dictionary);
      return true;
    case 'd': {  // DICT
      const Stack items = pop_to_mark();
      push(PickledKind::dictionary);
      set_items(items);
      return true;
    }
    case 's': {  // SETITEM
      PickledValue *value = pop(), *key = pop();
      set_items({key, value});
      return true;
    }
    case 'u':  // SETITEMS
      set_items(pop_to_mark());
      return true;

    case 'q':  // BINPUT
      memoize(number<uint8_t>());
      return true;
    case 'r':  // LONG_BINPUT
      memoize(number<uint32_t>());
      return true;
    case 0x94:  // MEMOIZE
      memoize(memo_.size());
      return true;
    case 'h':  // BINGET
      recall(number<uint8_t>());
      return true;
    case 'j':  // LONG_BINGET
      recall(number<uint32_t>());
      return true;

    case 'c': {  // GLOBAL
      const std::string module = line();
      push_global(module, line());
      return true;
    }
    case 0x93:  // STACK_GLOBAL
      stack_global();
      return true;
    case 'R':   // REDUCE
    case 0x81:  // NEWOBJ
      reduce();
      return true;
    case 'Q':  // BINPERSID
      push_storage();
      return true;
    case 'b':  // BUILD
      build();
      return true;
    case 'i': {  // INST, an old form of GLOBAL and REDUCE
      const std::string module = line();
      push_global(module, line());
      broken("it makes an instance");
    }
    default:
      broken(fmt::format("opcode 0x{:02x}, which files of tensors do not have", opcode));
  }
}

const PickledValue* PickleMachine::run() {
  while (step(number<uint8_t>())) {
  }
  if (stack_.size() != 1 || !marks_.empty()) broken("it ends with values left over");
  return stack_.back();
}

Pickle::Pickle(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  root_ = PickleMachine(path, bytes, *this).run();
}

}  // namespace difuse::models
