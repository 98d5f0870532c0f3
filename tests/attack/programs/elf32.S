# A 32-bit program without a library: write "OK", exit 0.
.globl _start
_start:
    movl $4, %eax
    movl $1, %ebx
    movl $text, %ecx
    movl $2, %edx
    int $0x80
    movl $1, %eax
    xorl %ebx, %ebx
    int $0x80
    hlt
.section .rodata
text: .ascii "OK"
.section .note.GNU-stack,"",@progbits
