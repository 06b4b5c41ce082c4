#include "tests/support/op_rows.h"

#include <gtest/gtest.h>

#include <set>

#include "ir/op.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace difuse {
namespace {

TEST(OpRows, EveryOpHasARow) {
  std::set<ir::Op> seen;
  for (const auto& row : testing::op_rows()) seen.insert(row.op);
  for (const ir::OpInfo& o : ir::all_ops()) {
    // What is carried is of a state, which rows have none of: the tests of Carry run it.
    if (o.op == ir::Op::input || o.op == ir::Op::state || o.op == ir::Op::carry) continue;
    EXPECT_TRUE(seen.contains(o.op)) << o.name;
  }
}

TEST(OpRows, EveryRowVerifiesAndSurvivesItsText) {
  for (const auto& row : testing::op_rows()) {
    SCOPED_TRACE(row.name);
    ir::verify(row.graph);
    const std::string text = ir::print(row.graph);
    EXPECT_EQ(ir::print(ir::parse(text)), text);
  }
}

}  // namespace
}  // namespace difuse
