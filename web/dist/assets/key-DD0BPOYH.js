import{an as s,ao as c}from"./index-C0w-xyTk.js";const k=Symbol("NaN");function N(n,r,e){var o=new c(n);s(()=>{var a=r();a!==a&&(a=k),o.ensure(a,e)})}export{N as k};
