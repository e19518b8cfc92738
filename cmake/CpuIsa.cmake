# Instruction sets that CPU kernels are compiled for on this processor family, each one including
# those before it, and the compiler flags of each.
set(llmc_isas portable)
set(llmc_isa_flags_portable "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND llmc_isas avx2 avx512)
  set(llmc_isa_flags_avx2 -mavx2 -mfma -mf16c)
  set(llmc_isa_flags_avx512 ${llmc_isa_flags_avx2} -mavx512f -mavx512dq -mavx512bw -mavx512vl
                            -mprefer-vector-width=512)
endif()

# llmc_add_isa_objects(target prefix sources...): compiles the sources once per instruction set, in
# namespace LLMC_ISA, and adds the objects to the target.
function(llmc_add_isa_objects target prefix)
  foreach(isa IN LISTS llmc_isas)
    set(objects ${prefix}_${isa})
    add_library(${objects} OBJECT ${ARGN})
    target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include
                                                  ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${objects} PRIVATE llmc_compile_options)
    target_compile_definitions(${objects} PRIVATE LLMC_ISA=${isa})
    target_compile_options(${objects} PRIVATE ${llmc_kernel_level} ${llmc_isa_flags_${isa}}
                                              -ffp-contract=fast)
    set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()
