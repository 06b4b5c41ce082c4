// One row per rule: text in, text out. Rows whose `after` is empty must not change.
#include "passes/canonicalize.h"

#include <gtest/gtest.h>

#include <set>

#include "ir/text.h"
#include "tests/support/graphs/graphs.h"

namespace difuse::passes {
namespace {

struct Row {
  const char* name;  ///< The rule, and what is special.
  const char* before;
  const char* after;
};

const Row kRows[] = {
    {"add_zero",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = constant {value = 0, dtype = f32, shape = [3]} : f32[3]
        %2 = add %1, %0 : f32[3]
        %3 = add %2, %1 : f32[3]
        %4 = neg %3 : f32[3]
        output "y" = %4)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %4 = neg %0 : f32[3]
        output "y" = %4)"},
    {"sub_zero",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = constant {value = 0, dtype = f32, shape = [3]} : f32[3]
        %2 = sub %0, %1 : f32[3]
        output "y" = %2)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        output "y" = %0)"},
    {"sub_zero, on the left",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = constant {value = 0, dtype = f32, shape = [3]} : f32[3]
        %2 = sub %1, %0 : f32[3]
        output "y" = %2)",
     ""},
    {"mul_one",
     R"(%0 = input {name = "x", dtype = f32, shape = []} : f32[]
        %1 = constant {value = 1, dtype = f32, shape = []} : f32[]
        %2 = broadcast %0 {shape = [2], dims = []} : f32[2]
        %3 = broadcast %1 {shape = [2], dims = []} : f32[2]
        %4 = mul %2, %3 : f32[2]
        output "y" = %4)",
     R"(%0 = input {name = "x", dtype = f32, shape = []} : f32[]
        %2 = broadcast %0 {shape = [2], dims = []} : f32[2]
        output "y" = %2)"},
    {"mul_one, by zero",
     R"(%0 = input {name = "x", dtype = f32, shape = []} : f32[]
        %1 = constant {value = 0, dtype = f32, shape = []} : f32[]
        %2 = mul %0, %1 : f32[]
        output "y" = %2)",
     ""},
    {"div_one",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = constant {value = 1, dtype = f32, shape = [3]} : f32[3]
        %2 = div %0, %1 : f32[3]
        output "y" = %2)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        output "y" = %0)"},
    {"neg_neg",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = neg %0 : f32[3]
        %2 = neg %1 : f32[3]
        output "y" = %2)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        output "y" = %0)"},
    {"add_neg",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "z", dtype = f32, shape = [3]} : f32[3]
        %2 = neg %0 : f32[3]
        %3 = add %2, %1 : f32[3]
        output "y" = %3)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "z", dtype = f32, shape = [3]} : f32[3]
        %3 = sub %1, %0 : f32[3]
        output "y" = %3)"},
    {"sub_neg",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "z", dtype = f32, shape = [3]} : f32[3]
        %2 = neg %0 : f32[3]
        %3 = sub %1, %2 : f32[3]
        output "y" = %3)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "z", dtype = f32, shape = [3]} : f32[3]
        %3 = add %1, %0 : f32[3]
        output "y" = %3)"},
    {"select_same",
     R"(%0 = input {name = "c", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %2 = select %0, %1, %1 : f32[3]
        output "y" = %2)",
     R"(%0 = input {name = "c", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        output "y" = %1)"},
    {"cast_same",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = cast %0 {dtype = f32} : f32[3]
        output "y" = %1)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        output "y" = %0)"},
    {"cast_cast",
     R"(%0 = input {name = "x", dtype = bf16, shape = [3]} : bf16[3]
        %1 = cast %0 {dtype = f32} : f32[3]
        %2 = cast %1 {dtype = bf16} : bf16[3]
        %3 = cast %1 {dtype = f16} : f16[3]
        output "y" = %2
        output "z" = %3)",
     R"(%0 = input {name = "x", dtype = bf16, shape = [3]} : bf16[3]
        %3 = cast %0 {dtype = f16} : f16[3]
        output "y" = %0
        output "z" = %3)"},
    {"cast_cast, that rounds",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = cast %0 {dtype = bf16} : bf16[3]
        %2 = cast %1 {dtype = f32} : f32[3]
        output "y" = %2)",
     ""},
    {"fold",
     R"(%0 = constant {value = 3, dtype = f32, shape = [2]} : f32[2]
        %1 = constant {value = 0.5, dtype = f32, shape = [2]} : f32[2]
        %2 = mul %0, %1 : f32[2]
        %3 = sqrt %0 : f32[2]
        %4 = less %1, %0 : f32[2]
        %5 = cast %0 {dtype = i32} : i32[2]
        output "a" = %2
        output "b" = %3
        output "c" = %4
        output "d" = %5)",
     R"(%2 = constant {value = 1.5, dtype = f32, shape = [2]} : f32[2]
        %3 = constant {value = 1.7320508075688772, dtype = f32, shape = [2]} : f32[2]
        %4 = constant {value = 1, dtype = f32, shape = [2]} : f32[2]
        %5 = constant {value = 3, dtype = i32, shape = [2]} : i32[2]
        output "a" = %2
        output "b" = %3
        output "c" = %4
        output "d" = %5)"},
    {"fold, what is no number and what overflows",
     R"(%0 = constant {value = -1, dtype = f32, shape = []} : f32[]
        %1 = sqrt %0 : f32[]
        %2 = constant {value = 2147483647, dtype = i32, shape = []} : i32[]
        %3 = add %2, %2 : i32[]
        output "a" = %1
        output "b" = %3)",
     ""},
    {"broadcast_same",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = broadcast %0 {shape = [3], dims = [0]} : f32[3]
        output "y" = %1)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        output "y" = %0)"},
    {"broadcast_constant, reshape_constant, view_constant, transpose_constant, slice_constant",
     R"(%0 = constant {value = 7, dtype = f32, shape = [2]} : f32[2]
        %1 = broadcast %0 {shape = [4, 2], dims = [1]} : f32[4, 2]
        %2 = transpose %1 {perm = [1, 0]} : f32[2, 4]
        %3 = reshape %2 {shape = [8]} : f32[8]
        %4 = slice %3 {axis = 0, begin = 1, end = 8} : f32[7]
        %5 = view %4 {offset = 1, shape = [2, 3]} : f32[2, 3]
        output "y" = %5)",
     R"(%0 = constant {value = 7, dtype = f32, shape = [2, 3]} : f32[2, 3]
        output "y" = %0)"},
    {"broadcast_broadcast",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = broadcast %0 {shape = [2, 3], dims = [1]} : f32[2, 3]
        %2 = broadcast %1 {shape = [2, 4, 3, 5], dims = [0, 2]} : f32[2, 4, 3, 5]
        output "y" = %2)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %2 = broadcast %0 {shape = [2, 4, 3, 5], dims = [2]} : f32[2, 4, 3, 5]
        output "y" = %2)"},
    {"broadcast_reshape",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = reshape %0 {shape = [2, 1, 3]} : f32[2, 1, 3]
        %2 = broadcast %1 {shape = [2, 1, 4, 3], dims = [0, 1, 3]} : f32[2, 1, 4, 3]
        output "y" = %2)",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %2 = broadcast %0 {shape = [2, 1, 4, 3], dims = [0, 3]} : f32[2, 1, 4, 3]
        output "y" = %2)"},
    {"broadcast_reshape, that splits an axis",
     R"(%0 = input {name = "x", dtype = f32, shape = [6]} : f32[6]
        %1 = reshape %0 {shape = [2, 3]} : f32[2, 3]
        %2 = broadcast %1 {shape = [2, 4, 3], dims = [0, 2]} : f32[2, 4, 3]
        output "y" = %2)",
     ""},
    {"reshape_same, reshape_reshape",
     R"(%0 = input {name = "x", dtype = f32, shape = [6]} : f32[6]
        %1 = reshape %0 {shape = [2, 3]} : f32[2, 3]
        %2 = reshape %1 {shape = [3, 2]} : f32[3, 2]
        %3 = reshape %1 {shape = [6]} : f32[6]
        %4 = reshape %0 {shape = [6]} : f32[6]
        output "a" = %2
        output "b" = %3
        output "c" = %4)",
     R"(%0 = input {name = "x", dtype = f32, shape = [6]} : f32[6]
        %1 = reshape %0 {shape = [3, 2]} : f32[3, 2]
        output "a" = %1
        output "b" = %0
        output "c" = %0)"},
    {"reshape_view, view_view, view_same",
     R"(%0 = input {name = "x", dtype = f32, shape = [10]} : f32[10]
        %1 = view %0 {offset = 2, shape = [8]} : f32[8]
        %2 = view %1 {offset = 1, shape = [2, 3]} : f32[2, 3]
        %3 = reshape %2 {shape = [6, 1]} : f32[6, 1]
        %4 = view %0 {offset = 0, shape = [10]} : f32[10]
        output "y" = %3
        output "z" = %4)",
     R"(%0 = input {name = "x", dtype = f32, shape = [10]} : f32[10]
        %1 = view %0 {offset = 3, shape = [6, 1]} : f32[6, 1]
        output "y" = %1
        output "z" = %0)"},
    {"view_pack",
     R"(%0 = input {name = "a", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "b", dtype = f32, shape = [4]} : f32[4]
        %2 = pack %0, %1 {size = 10, offsets = [1, 5]} : f32[10]
        %3 = view %2 {offset = 5, shape = [2, 2]} : f32[2, 2]
        output "y" = %3)",
     R"(%0 = input {name = "a", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "b", dtype = f32, shape = [4]} : f32[4]
        %2 = reshape %1 {shape = [2, 2]} : f32[2, 2]
        output "y" = %2)"},
    {"view_pack, across two parts",
     R"(%0 = input {name = "a", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "b", dtype = f32, shape = [4]} : f32[4]
        %2 = pack %0, %1 {size = 7, offsets = [0, 3]} : f32[7]
        %3 = view %2 {offset = 2, shape = [3]} : f32[3]
        output "y" = %3)",
     ""},
    {"transpose_identity, transpose_transpose",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3, 4]} : f32[2, 3, 4]
        %1 = transpose %0 {perm = [2, 0, 1]} : f32[4, 2, 3]
        %2 = transpose %1 {perm = [1, 2, 0]} : f32[2, 3, 4]
        %3 = transpose %1 {perm = [0, 2, 1]} : f32[4, 3, 2]
        output "a" = %2
        output "b" = %3)",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3, 4]} : f32[2, 3, 4]
        %1 = transpose %0 {perm = [2, 1, 0]} : f32[4, 3, 2]
        output "a" = %0
        output "b" = %1)"},
    {"concat_one",
     R"(%0 = input {name = "x", dtype = f32, shape = [2]} : f32[2]
        %1 = concat %0 {axis = 0} : f32[2]
        output "y" = %1)",
     R"(%0 = input {name = "x", dtype = f32, shape = [2]} : f32[2]
        output "y" = %0)"},
    {"slice_same, slice_concat",
     R"(%0 = input {name = "a", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = input {name = "b", dtype = f32, shape = [2, 4]} : f32[2, 4]
        %2 = concat %0, %1 {axis = 1} : f32[2, 7]
        %3 = slice %2 {axis = 1, begin = 3, end = 7} : f32[2, 4]
        %4 = slice %2 {axis = 1, begin = 1, end = 3} : f32[2, 2]
        %5 = slice %2 {axis = 1, begin = 2, end = 4} : f32[2, 2]
        %6 = slice %2 {axis = 1, begin = 0, end = 7} : f32[2, 7]
        output "whole" = %3
        output "inside" = %4
        output "across" = %5
        output "all" = %6)",
     R"(%0 = input {name = "a", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = input {name = "b", dtype = f32, shape = [2, 4]} : f32[2, 4]
        %2 = concat %0, %1 {axis = 1} : f32[2, 7]
        %4 = slice %0 {axis = 1, begin = 1, end = 3} : f32[2, 2]
        %5 = slice %2 {axis = 1, begin = 2, end = 4} : f32[2, 2]
        output "whole" = %1
        output "inside" = %4
        output "across" = %5
        output "all" = %2)"},
    {"slice_slice",
     R"(%0 = input {name = "x", dtype = f32, shape = [9]} : f32[9]
        %1 = slice %0 {axis = 0, begin = 2, end = 8} : f32[6]
        %2 = slice %1 {axis = 0, begin = 1, end = 3} : f32[2]
        output "y" = %2)",
     R"(%0 = input {name = "x", dtype = f32, shape = [9]} : f32[9]
        %1 = slice %0 {axis = 0, begin = 3, end = 5} : f32[2]
        output "y" = %1)"},
    {"slice_pad, pad_nothing",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = pad %0 {axis = 0, before = 2, after = 4} : f32[9]
        %2 = slice %1 {axis = 0, begin = 2, end = 5} : f32[3]
        %3 = slice %1 {axis = 0, begin = 6, end = 8} : f32[2]
        %4 = slice %1 {axis = 0, begin = 1, end = 3} : f32[2]
        %5 = pad %0 {axis = 0, before = 0, after = 0} : f32[3]
        output "inside" = %2
        output "zeros" = %3
        output "both" = %4
        output "nothing" = %5)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = pad %0 {axis = 0, before = 2, after = 4} : f32[9]
        %3 = constant {value = 0, dtype = f32, shape = [2]} : f32[2]
        %4 = slice %1 {axis = 0, begin = 1, end = 3} : f32[2]
        output "inside" = %0
        output "zeros" = %3
        output "both" = %4
        output "nothing" = %0)"},
    {"sum_constant",
     R"(%0 = constant {value = 0.5, dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = reduce_sum %0 {axes = [1]} : f32[2]
        output "y" = %1)",
     R"(%0 = constant {value = 1.5, dtype = f32, shape = [2]} : f32[2]
        output "y" = %0)"},
    {"sum_broadcast, repeated and own axes",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = broadcast %0 {shape = [2, 4, 3], dims = [0, 2]} : f32[2, 4, 3]
        %2 = reduce_sum %1 {axes = [1]} : f32[2, 3]
        %3 = reduce_sum %1 {axes = [0, 1]} : f32[3]
        %4 = reduce_sum %1 {axes = [2]} : f32[2, 4]
        output "repeated" = %2
        output "both" = %3
        output "own" = %4)",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = constant {value = 4, dtype = f32, shape = [2, 3]} : f32[2, 3]
        %2 = mul %0, %1 : f32[2, 3]
        %3 = reduce_sum %0 {axes = [0]} : f32[3]
        %4 = constant {value = 4, dtype = f32, shape = [3]} : f32[3]
        %5 = mul %3, %4 : f32[3]
        %6 = reduce_sum %0 {axes = [1]} : f32[2]
        %7 = broadcast %6 {shape = [2, 4], dims = [0]} : f32[2, 4]
        output "repeated" = %2
        output "both" = %5
        output "own" = %7)"},
    {"sum_neg",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = neg %0 : f32[2, 3]
        %2 = reduce_sum %1 {axes = [0]} : f32[3]
        output "y" = %2)",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = reduce_sum %0 {axes = [0]} : f32[3]
        %2 = neg %1 : f32[3]
        output "y" = %2)"},
    {"sum_mul, of an image by a factor per image and channel",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 4, 4, 3]} : f32[2, 4, 4, 3]
        %1 = input {name = "s", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %2 = broadcast %1 {shape = [2, 4, 4, 3], dims = [0, 3]} : f32[2, 4, 4, 3]
        %3 = mul %2, %0 : f32[2, 4, 4, 3]
        %4 = reduce_sum %3 {axes = [1, 2]} : f32[2, 3]
        output "y" = %4)",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 4, 4, 3]} : f32[2, 4, 4, 3]
        %1 = input {name = "s", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %2 = reduce_sum %0 {axes = [1, 2]} : f32[2, 3]
        %3 = mul %2, %1 : f32[2, 3]
        output "y" = %3)"},
    {"sum_mul, by a constant and by less than what is left",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 4, 3]} : f32[2, 4, 3]
        %1 = input {name = "s", dtype = f32, shape = [3]} : f32[3]
        %2 = broadcast %1 {shape = [2, 4, 3], dims = [2]} : f32[2, 4, 3]
        %3 = mul %0, %2 : f32[2, 4, 3]
        %4 = reduce_sum %3 {axes = [1]} : f32[2, 3]
        %5 = constant {value = 0.25, dtype = f32, shape = [2, 4, 3]} : f32[2, 4, 3]
        %6 = mul %0, %5 : f32[2, 4, 3]
        %7 = reduce_sum %6 {axes = [0, 1, 2]} : f32[]
        output "y" = %4
        output "mean" = %7)",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 4, 3]} : f32[2, 4, 3]
        %1 = input {name = "s", dtype = f32, shape = [3]} : f32[3]
        %2 = broadcast %1 {shape = [2, 3], dims = [1]} : f32[2, 3]
        %3 = reduce_sum %0 {axes = [1]} : f32[2, 3]
        %4 = mul %3, %2 : f32[2, 3]
        %5 = constant {value = 0.25, dtype = f32, shape = []} : f32[]
        %6 = reduce_sum %0 {axes = [0, 1, 2]} : f32[]
        %7 = mul %6, %5 : f32[]
        output "y" = %4
        output "mean" = %7)"},
    {"sum_mul, by what varies along the summed axis",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = input {name = "s", dtype = f32, shape = [3]} : f32[3]
        %2 = broadcast %1 {shape = [2, 3], dims = [1]} : f32[2, 3]
        %3 = mul %0, %2 : f32[2, 3]
        %4 = reduce_sum %3 {axes = [0, 1]} : f32[]
        output "y" = %4)",
     ""},
    {"sum_mul, of a sum that is not split",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %1 = input {name = "z", dtype = f32, shape = [2, 3]} : f32[2, 3]
        %2 = add %0, %1 : f32[2, 3]
        %3 = reduce_sum %2 {axes = [0]} : f32[3]
        output "y" = %3)",
     ""},
    {"dgrad_as_fprop",
     R"(%0 = input {name = "dy", dtype = f32, shape = [1, 6, 6, 4]} : f32[1, 6, 6, 4]
        %1 = input {name = "w", dtype = f32, shape = [4, 3, 3, 2]} : f32[4, 3, 3, 2]
        %2 = conv_dgrad %0, %1 {stride = 1, pad = 0, height = 8, width = 8} : f32[1, 8, 8, 2]
        output "dx" = %2)",
     R"(%0 = input {name = "dy", dtype = f32, shape = [1, 6, 6, 4]} : f32[1, 6, 6, 4]
        %1 = input {name = "w", dtype = f32, shape = [4, 3, 3, 2]} : f32[4, 3, 3, 2]
        %2 = repack %1 {layout = flipped} : f32[2, 3, 3, 4]
        %3 = conv_fprop %0, %2 {stride = 1, pad = 2} : f32[1, 8, 8, 2]
        output "dx" = %3)"},
    {"dgrad_as_fprop, at stride 2",
     R"(%0 = input {name = "dy", dtype = f32, shape = [1, 4, 4, 4]} : f32[1, 4, 4, 4]
        %1 = input {name = "w", dtype = f32, shape = [4, 3, 3, 2]} : f32[4, 3, 3, 2]
        %2 = conv_dgrad %0, %1 {stride = 2, pad = 1, height = 8, width = 8} : f32[1, 8, 8, 2]
        output "dx" = %2)",
     ""},
    {"silu beside sigmoid",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = silu %0 : f32[3]
        %2 = sigmoid %0 : f32[3]
        output "y" = %1
        output "z" = %2)",
     ""},
    {"dead code and unread inputs",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "unread", dtype = f32, shape = [3]} : f32[3]
        %2 = silu %0 : f32[3]
        %3 = neg %0 : f32[3]
        output "y" = %3)",
     R"(%0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
        %1 = input {name = "unread", dtype = f32, shape = [3]} : f32[3]
        %3 = neg %0 : f32[3]
        output "y" = %3)"},
    {"reduce_reshaped",
     R"(%0 = input {name = "x", dtype = f32, shape = [4, 6]} : f32[4, 6]
        %1 = input {name = "gamma", dtype = f32, shape = [6]} : f32[6]
        %2 = broadcast %1 {shape = [4, 6], dims = [1]} : f32[4, 6]
        %3 = mul %0, %2 : f32[4, 6]
        %4 = silu %3 : f32[4, 6]
        %5 = reshape %4 {shape = [4, 2, 3]} : f32[4, 2, 3]
        %6 = reduce_sum %5 {axes = [2]} : f32[4, 2]
        output "y" = %6)",
     R"(%0 = input {name = "x", dtype = f32, shape = [4, 6]} : f32[4, 6]
        %1 = input {name = "gamma", dtype = f32, shape = [6]} : f32[6]
        %2 = reshape %0 {shape = [4, 2, 3]} : f32[4, 2, 3]
        %3 = reshape %1 {shape = [2, 3]} : f32[2, 3]
        %4 = broadcast %3 {shape = [4, 2, 3], dims = [1, 2]} : f32[4, 2, 3]
        %5 = mul %2, %4 : f32[4, 2, 3]
        %6 = silu %5 : f32[4, 2, 3]
        %7 = reduce_sum %6 {axes = [2]} : f32[4, 2]
        output "y" = %7)"},
    {"reduce_reshaped, of what is not computed here",
     R"(%0 = input {name = "x", dtype = f32, shape = [4, 6]} : f32[4, 6]
        %1 = reshape %0 {shape = [4, 2, 3]} : f32[4, 2, 3]
        %2 = reduce_sum %1 {axes = [2]} : f32[4, 2]
        output "y" = %2)",
     ""},
    {"reduce_reshaped, long rows",
     R"(%0 = input {name = "x", dtype = f32, shape = [2, 4096]} : f32[2, 4096]
        %1 = silu %0 : f32[2, 4096]
        %2 = reshape %1 {shape = [2, 2, 2048]} : f32[2, 2, 2048]
        %3 = reduce_sum %2 {axes = [2]} : f32[2, 2]
        output "y" = %3)",
     ""},
    {"repeat_first",
     R"(%0 = input {name = "x", dtype = f32, shape = [4, 6]} : f32[4, 6]
        %1 = input {name = "s", dtype = f32, shape = [4]} : f32[4]
        %2 = reduce_max %0 {axes = [1]} : f32[4]
        %3 = add %2, %1 : f32[4]
        %4 = broadcast %3 {shape = [4, 6], dims = [0]} : f32[4, 6]
        %5 = sub %0, %4 : f32[4, 6]
        output "y" = %5)",
     R"(%0 = input {name = "x", dtype = f32, shape = [4, 6]} : f32[4, 6]
        %1 = input {name = "s", dtype = f32, shape = [4]} : f32[4]
        %2 = reduce_max %0 {axes = [1]} : f32[4]
        %3 = broadcast %2 {shape = [4, 6], dims = [0]} : f32[4, 6]
        %4 = broadcast %1 {shape = [4, 6], dims = [0]} : f32[4, 6]
        %5 = add %3, %4 : f32[4, 6]
        %6 = sub %0, %5 : f32[4, 6]
        output "y" = %6)"},
    {"repeat_first, of no row",
     R"(%0 = input {name = "x", dtype = f32, shape = [4, 6]} : f32[4, 6]
        %1 = reduce_max %0 {axes = [0]} : f32[6]
        %2 = neg %1 : f32[6]
        %3 = broadcast %2 {shape = [4, 6], dims = [1]} : f32[4, 6]
        output "y" = %3)",
     ""},
};

ir::Graph parse_row(const char* text) { return ir::parse("graph g {\n" + std::string(text) + "\n}\n"); }

PassResult run(const ir::Graph& graph, Fuel fuel = {}) {
  const ir::DeviceSpec device;
  PassContext context{device, fuel};
  return canonicalize(graph, context);
}

class Rules : public ::testing::TestWithParam<Row> {};

TEST_P(Rules, GiveTheText) {
  const Row& row = GetParam();
  const ir::Graph before = parse_row(row.before);
  const PassResult result = run(before);
  const std::string expected = ir::print(parse_row(*row.after ? row.after : row.before));
  EXPECT_EQ(ir::print(result.graph), expected) << row.name;
  EXPECT_EQ(result.changed, *row.after != 0) << row.name;
  EXPECT_FALSE(run(result.graph).changed) << row.name << ": not idempotent";
  if (std::string(row.name).find("no number") == std::string::npos) {
    tests::expect_same_results(before, result.graph);
  }
}

INSTANTIATE_TEST_SUITE_P(Canonicalize, Rules, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return "row_" + std::to_string(row.index); });

TEST(Canonicalize, EveryRuleHasARow) {
  std::string names;
  for (const Row& row : kRows) names += std::string(row.name) + " ";
  std::set<std::string> missing;
  for (const Rule& rule : canonicalize_rules()) {
    if (names.find(rule.name) == std::string::npos) missing.insert(std::string(rule.name));
  }
  EXPECT_TRUE(missing.empty()) << *missing.begin();
}

TEST(Canonicalize, SpendsFuelForEachRewrite) {
  const ir::Graph graph = parse_row(R"(
    %0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
    %1 = constant {value = 0, dtype = f32, shape = [3]} : f32[3]
    %2 = add %0, %1 : f32[3]
    %3 = neg %2 : f32[3]
    %4 = neg %3 : f32[3]
    output "y" = %4)");
  const ir::DeviceSpec device;
  Fuel unlimited;
  PassContext context{device, unlimited};
  canonicalize(graph, context);
  EXPECT_EQ(unlimited.spent(), 2);
  EXPECT_FALSE(run(graph, Fuel(0)).changed);
  const std::string one = ir::print(run(graph, Fuel(1)).graph);
  EXPECT_EQ(one.find("add"), std::string::npos);
  EXPECT_NE(one.find("neg"), std::string::npos);
}

TEST(Canonicalize, KeepsWhatTheGradientGraphMeans) {
  const ir::Graph graph = tests::norm_block(3, 8, 8, 4, 2);
  const PassResult result = run(graph);
  EXPECT_TRUE(result.changed);
  EXPECT_FALSE(run(result.graph).changed);
  tests::expect_same_results(graph, result.graph);
}

TEST(Rewrite, RefusesARuleThatNeverComesToRest) {
  const Rule kSwap[] = {{"swap", ir::Op::add, [](ir::Builder& build, const ir::Node& node) {
                           return build.add(node.operands[1], node.operands[0]);
                         }}};
  const ir::Graph graph = parse_row(R"(
    %0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
    %1 = input {name = "z", dtype = f32, shape = [3]} : f32[3]
    %2 = add %0, %1 : f32[3]
    output "y" = %2)");
  const ir::DeviceSpec device;
  Fuel fuel;
  PassContext context{device, fuel};
  EXPECT_ANY_THROW(rewrite(graph, kSwap, context));
}

}  // namespace
}  // namespace difuse::passes
