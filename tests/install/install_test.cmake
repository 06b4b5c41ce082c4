# Installs what BUILD holds, then configures, builds and runs the example as a project of its own, in WORK.
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/models/example -B ${WORK}/build -G Ninja
                        -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_CXX_COMPILER=${COMPILER}
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/build/five_ops OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
message("${output}")
# x runs from -128 in steps of 1 and is silu(x) + x: about x below 0, about 2 x above.
if(NOT output MATCHES "\n-1088 -1072.01 [^\n]* 1920 1951.73 ")
  message(FATAL_ERROR "the example computes something else")
endif()
